"""What the docker provider promises beyond the contract, on a real engine."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiodocker.exceptions import DockerError
from pydantic import ValidationError

import docker_engine
from docker_rig import engine_rig
from sandbox.config import SandboxConfig, problems
from sandbox.docker import container
from sandbox.docker.errors import translate_error, translate_errors
from sandbox.docker.settings import DockerSettings
from sandbox.errors import (
    CommandInterrupted,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxGone,
)
from sandbox.labels import key_of
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network, SandboxId
from sandbox.port import Provider, Sandbox
from sandbox.registry import built_in
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import wait_for_job, wait_for_output


@pytest.fixture
def rig(tmp_path: Path) -> ProviderRig:
    """Return the provider with everything that an operator may add to it."""
    more = tmp_path / "more"
    more.mkdir()
    (more / "file").write_text("the operator's")
    return engine_rig("full", tmp_path, mounts=(f"{more}:/opt/more",), images=("localhost/other:1",))


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return the provider; its sandboxes are destroyed afterwards."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


def engine_request(method: str, path: str) -> str:
    """Ask the engine behind the provider's back."""
    return docker_engine.shared_engine().call(method, path)


async def output_of(sandbox: Sandbox, script: str) -> bytes:
    """Return a script's output."""
    return (await sandbox.run(ExecRequest(script=script))).stdout


async def test_a_command_whose_container_is_removed_is_interrupted(
    provider: Provider, rig: ProviderRig
) -> None:
    """Gone alone would have the gateway run it a second time."""
    sandbox = await provider.create(rig.spec())
    begun = asyncio.Event()
    command = ExecRequest(script="echo sent; sleep 60", on_output=lambda *_: begun.set())
    running = asyncio.create_task(sandbox.run(command))
    await begun.wait()
    await asyncio.to_thread(engine_request, "DELETE", f"/containers/{sandbox.id}?force=1")
    with pytest.raises(CommandInterrupted, match="before you repeat it"):
        await running


async def test_containers_of_an_account_have_one_control_group(provider: Provider, rig: ProviderRig) -> None:
    """The kernel divides the processors among accounts, whatever number of containers each has."""
    groups = {}
    for account, label in (("one", "a"), ("one", "b"), ("other", "c")):
        sandbox = await provider.create(rig.spec(label=f"{rig.label}{label}", account=account))
        state = json.loads(engine_request("GET", f"/containers/{sandbox.id}/json"))["State"]
        lines = (await asyncio.to_thread(Path(f"/proc/{state['Pid']}/cgroup").read_text)).splitlines()
        groups[label] = {line.split(":", 2)[2].rpartition("/")[0] for line in lines} - {""}
    if not groups["a"]:
        pytest.skip("the engine's control groups are not visible here")
    keys = {account: key_of("account", account) for account in ("one", "other")}
    for label, account in (("a", "one"), ("b", "one"), ("c", "other")):
        ours = (f"/dovecote/{keys[account]}", f"/dovecote-{keys[account]}.slice")
        assert all(group.endswith(ours) for group in groups[label]), groups


def test_the_group_of_an_account_is_named_as_the_driver_wants_it() -> None:
    """A path, a slice, or none for an engine without control groups."""
    names = {driver: container.account_cgroup("a/../b", driver) for driver in ("cgroupfs", "systemd", "none")}
    key = key_of("account", "a/../b")
    assert names == {"cgroupfs": f"/dovecote/{key}", "systemd": f"dovecote-{key}.slice", "none": ""}
    assert key.isalnum()


async def test_twenty_at_once_make_one_container(provider: Provider, rig: ProviderRig) -> None:
    """Two openings of the provider that create one label at once get one sandbox."""
    async with rig.open() as other:
        makers = [provider, other] * 10
        made = await asyncio.gather(*(maker.create(rig.spec()) for maker in makers))
    assert len({sandbox.id for sandbox in made}) == 1
    assert len(await provider.list(rig.label)) == 1


async def test_a_crash_after_the_making_leaks_nothing(rig: ProviderRig) -> None:
    """A container that was made and never used is found by its label, and used by the next one."""

    def crash(name: str) -> None:
        raise RuntimeError(name)

    context = rig.provider_context
    crashing = type(context)(state=context.state, callbacks=context.callbacks, checkpoint=crash)
    async with rig.plugin.open(rig.settings, crashing) as provider:
        with pytest.raises(RuntimeError, match="create"):
            await provider.create(rig.spec())
    async with rig.open() as provider:
        ((sandbox_id, label),) = await provider.list(rig.label)
        assert label == rig.label
        sandbox = await provider.create(rig.spec())
        assert sandbox.id == sandbox_id
        assert await output_of(sandbox, "echo here") == b"here\n"
        await provider.destroy(sandbox_id)


async def test_another_configuration_is_another_container(provider: Provider, rig: ProviderRig) -> None:
    """What was made with other limits or another network is never used; HOME stays."""
    first = await provider.create(rig.spec(persistent=True))
    await output_of(first, "echo kept > ~/file; touch /tmp/old")
    changed = rig.spec(persistent=True, memory_mb=128)
    with pytest.raises(SandboxGone):
        await provider.connect(first.id, changed)
    second = await provider.create(changed)
    assert await output_of(second, "cat ~/file; ls /tmp") == b"kept\n"


async def test_a_sandbox_that_was_stopped_wakes(provider: Provider, rig: ProviderRig) -> None:
    """After suspension, or an engine that stopped it, the next command runs, and HOME is what it was."""
    sandbox = await provider.create(rig.spec(persistent=True))
    await output_of(sandbox, "echo kept > ~/file")
    await sandbox.suspend()
    await sandbox.suspend()
    assert '"Running":false' in engine_request("GET", f"/containers/{sandbox.id}/json")
    assert await output_of(sandbox, "cat ~/file") == b"kept\n"
    engine_request("POST", f"/containers/{sandbox.id}/pause")
    assert await output_of(sandbox, "cat ~/file") == b"kept\n"


async def test_pausing_keeps_everything(tmp_path: Path) -> None:
    """With `suspend = pause` /tmp is there again; a read-only root leaves the usual places writable."""
    rig = engine_rig("pause", tmp_path, suspend="pause", read_only_root=True)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        script = "touch /usr/new 2>/dev/null || echo no; echo kept > /tmp/file"
        assert await output_of(sandbox, script) == b"no\n"
        await sandbox.suspend()
        assert '"Paused":true' in engine_request("GET", f"/containers/{sandbox.id}/json")
        assert await output_of(sandbox, "cat /tmp/file") == b"kept\n"
        await provider.destroy(sandbox.id)


async def test_a_running_job_keeps_its_sandbox_awake(provider: Provider, rig: ProviderRig) -> None:
    """Suspension is refused while a job runs; a job that lost its container is reported as lost."""
    sandbox = await provider.create(rig.spec(persistent=True))
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script="echo begun; sleep 60"))
    await wait_for_output(sandbox, "job_1", b"begun")
    with pytest.raises(ProviderRefused):
        await sandbox.suspend()
    engine_request("POST", f"/containers/{sandbox.id}/restart?t=0")
    report = await sandbox.report("job_1")
    assert (report.state, report.output) == (BackgroundJobState.RECREATED, b"begun\n")


async def test_a_run_leaves_a_job_alone(provider: Provider, rig: ProviderRig) -> None:
    """What is swept at the end of a run, by its time-out too, is never another's."""
    sandbox = await provider.create(rig.spec())
    await sandbox.spawn(
        BackgroundJob(id="job_1", token=TOKEN, script="echo begun; while ! test -e go; do sleep 0.05; done")
    )
    await wait_for_output(sandbox, "job_1", b"begun")
    await sandbox.run(ExecRequest(script="setsid sleep 40 & env -i setsid sleep 40 >&- 2>&- & true"))
    await asyncio.gather(
        sandbox.run(ExecRequest(script="setsid sleep 40 & sleep 40", timeout=0.5)),
        sandbox.run(ExecRequest(script="sleep 1.5; echo whole > whole")),
    )
    assert await sandbox.read("whole", limit=10) == b"whole\n"
    await sandbox.write("go", b"")
    assert (await wait_for_job(sandbox, "job_1")).exit_code == 0


async def test_home_and_the_image_come_back(provider: Provider, rig: ProviderRig) -> None:
    """What was installed, in HOME and in the image's own places, is there again in another container."""
    sandbox = await provider.create(rig.spec(persistent=True))
    script = (
        "mkdir -p ~/.local/bin /usr/local/lib/new/deep; echo 'echo hello' > ~/.local/bin/greet;"
        "chmod +x ~/.local/bin/greet; ln -s greet ~/.local/bin/link; mkfifo ~/pipe;"
        "echo 'there = 1' > /usr/local/lib/new/deep/one.py; echo more >> /etc/group; touch /tmp/not"
    )
    await output_of(sandbox, script)
    packed = b"".join([chunk async for chunk in sandbox.save()])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        names = set(tar.getnames())
    assert {"home/.local/bin/greet", "root/usr/local/lib/new/deep/one.py", "root/etc/group"} <= names
    assert not any("tmp" in name or "pipe" in name for name in names)
    await provider.destroy(sandbox.id)
    again = await provider.create(rig.spec(persistent=True))

    async def chunks() -> AsyncIterator[bytes]:
        yield packed[:100]
        yield packed[100:]

    await again.restore(chunks())
    check = (
        "link; cat /usr/local/lib/new/deep/one.py; tail -n 1 /etc/group; touch ~/.local/bin/new && echo own"
    )
    assert await output_of(again, check) == b"hello\nthere = 1\nmore\nown\n"


async def test_a_hostile_snapshot_is_refused(provider: Provider, rig: ProviderRig) -> None:
    """What is no snapshot leaves the sandbox as it was."""
    sandbox = await provider.create(rig.spec(persistent=True))

    async def chunks() -> AsyncIterator[bytes]:
        yield b"no archive"

    with pytest.raises(ProviderRefused):
        await sandbox.restore(chunks())


async def test_a_port_is_reached_by_its_url(tmp_path: Path) -> None:
    """A published port of an allow-all sandbox has a URL; others, and deny-all ones, are refused."""
    network = docker_engine.open_network(docker_engine.shared_engine())
    rig = engine_rig("ports", tmp_path, network=network, ports=(8080,))
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec(network=Network.ALLOW_ALL))
        (rig.workspace / "index.html").write_text("served")
        await sandbox.spawn(
            BackgroundJob(id="web", token=TOKEN, script="exec python3 -u -m http.server 8080")
        )
        await wait_for_output(sandbox, "web", b"Serving")
        url = await sandbox.expose(8080)
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert await answer.text() == "served"
        with pytest.raises(ProviderRefused, match="8081"):
            await sandbox.expose(8081)
        closed = await provider.create(rig.spec(label=f"{rig.label}:closed"))
        with pytest.raises(ProviderRefused, match="allow-all"):
            await closed.expose(8080)
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


async def test_the_operator_says_what_is_used(provider: Provider, rig: ProviderRig) -> None:
    """Mounts are the operator's, read-only; images are those allowed; missing features are reported."""
    sandbox = await provider.create(rig.spec())
    assert (
        await output_of(sandbox, "cat /opt/more/file; touch /opt/more/x 2>/dev/null || echo no")
        == b"the operator'sno\n"
    )
    with pytest.raises(ProviderRefused, match="operator allows"):
        await provider.create(rig.spec(options={"image": "localhost/evil:1"}))
    with pytest.raises(ProviderRefused, match="other:1"):
        await provider.create(rig.spec(label=f"{rig.label}:2", options={"image": "localhost/other:1"}))


async def test_files_belong_to_both(provider: Provider, rig: ProviderRig) -> None:
    """What a command wrote the gateway may remove, and the other way round."""
    sandbox = await provider.create(rig.spec(persistent=True))
    await sandbox.write("ours", b"1")
    await output_of(
        sandbox,
        "echo 2 >> ours; mkdir -p theirs/deep; echo x > theirs/deep/file; mkdir ~/locked; chmod 0 ~/locked",
    )
    assert await sandbox.read("ours", limit=9) == b"12\n"
    assert (rig.workspace / "theirs/deep/file").stat().st_uid == os.getuid()
    await provider.destroy(sandbox.id)
    assert not list((rig.directory / "state/homes").iterdir())


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    """Without an engine every call raises ProviderUnreachable, and doctor gives the reason."""
    settings = DockerSettings(host=f"unix://{tmp_path}/no.sock")
    rig = ProviderRig(name="none", plugin=built_in()["docker"], settings=settings, directory=tmp_path)
    async with rig.open() as provider:
        with pytest.raises(ProviderUnreachable):
            await provider.create(rig.spec())
        with pytest.raises(ProviderUnreachable):
            await provider.list()
        with pytest.raises(ProviderUnreachable):
            await provider.connect(container.container_id("label"), rig.spec())
        with pytest.raises(SandboxGone):
            await provider.connect(SandboxId("somebodys-database"), rig.spec())
    (reported,) = await asyncio.to_thread(rig.plugin.capabilities, settings)
    assert not reported.present
    assert "no.sock" in reported.detail


async def test_doctor_reads_what_the_engine_has(rig: ProviderRig) -> None:
    """Isolation, limits and the image are reported, from inside an event loop too."""
    reported = {ability.name: ability for ability in rig.plugin.capabilities(rig.settings)}
    assert reported["isolation"].present
    assert reported["image"].present
    assert "limit.memory" in reported


def test_a_config_is_judged_field_by_field() -> None:
    """Every field without a meaning here is named, and the rest is accepted."""
    plugin = built_in()["docker"]
    options = {
        "template": "x",
        "persistentDiskGb": 3,
        "memoryGb": 1,
        "image": "../UP",
        "persistentHome": True,
    }
    config = SandboxConfig.model_validate(
        {"network": {"mode": "restricted", "allowDomains": ["*"]}, "options": options}
    )
    found = {problem.pointer for problem in problems(config, plugin)}
    named = {"/options/template", "/options/persistentDiskGb", "/options/memoryGb", "/options/image"}
    assert found == named | {"/network/allowDomains/0", "/options/persistentHome"}
    fine = {"network": {"mode": "allow-all"}, "options": {"image": "python:3.12-slim", "cpu": 2}}
    assert not problems(SandboxConfig.model_validate(fine), plugin)


@pytest.mark.parametrize(
    "wrong",
    [{"host": "docker"}, {"image": "A B"}, {"mounts": ["x:y"]}, {"user": "me"}, {"ports": [0]}, {"x": 1}],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    """What an operator cannot mean is refused at start."""
    with pytest.raises(ValidationError):
        DockerSettings.model_validate(wrong)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, ProviderUnreachable),
        (401, ProviderUnauthorized),
        (403, ProviderUnauthorized),
        (409, ProviderRefused),
        (500, ProviderRefused),
        (503, ProviderUnreachable),
    ],
)
def test_errors_are_folded(status: int, kind: type[Exception]) -> None:
    """Each of the engine's refusals is one of the port's errors."""
    assert isinstance(translate_error(DockerError(status, "why")), kind)
    with pytest.raises(kind), translate_errors():
        raise DockerError(status, "why")


@pytest.mark.parametrize(
    "message",
    [
        "No such container: dovecote-1",
        "No such exec instance: 0123",
        'no container with name or ID "dovecote-1" found: no such container',
    ],
)
def test_only_the_engine_says_that_a_container_is_gone(message: str) -> None:
    """A container of which Docker or Podman says so is gone; a 404 of a proxy says nothing of it."""
    assert isinstance(translate_error(DockerError(404, message)), SandboxGone)
    assert not isinstance(translate_error(DockerError(404, "<h1>Not Found</h1>")), SandboxGone)


def test_a_socket_that_may_not_be_used() -> None:
    """A user who may not use the socket is advised to join the group."""
    with pytest.raises(ProviderUnauthorized, match="group"), translate_errors():
        raise DockerError(900, "Cannot connect to Docker Engine: Permission denied")


def test_without_the_extra_it_says_so() -> None:
    """The manifest needs no SDK; what does names the extra."""
    program = (
        "import sys; sys.modules['aiodocker'] = None\n"
        "from pathlib import Path\n"
        "from sandbox.port import CallbackDirectories\n"
        "from sandbox.docker import plugin\n"
        "from sandbox.errors import ProviderRefused\n"
        "from sandbox.port import ProviderContext\n"
        "print(plugin.capabilities(plugin.settings())[0].detail)\n"
        "callbacks = CallbackDirectories(root=Path('.'))\n"
        "try: plugin.open(plugin.settings(), ProviderContext(state=Path('.'), callbacks=callbacks))\n"
        "except ProviderRefused as error: print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.count(".[docker]") == 2
