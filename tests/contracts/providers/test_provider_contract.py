"""What every sandbox provider promises, for every installed one and every way it can be set up here."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.errors import FeatureUnsupported, SandboxGone, UnsafePath
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network, SandboxId
from sandbox.port import Feature, Provider, Sandbox
from sandbox_rigs import (
    TOKEN,
    ProviderRig,
    all_rigs,
    other_process_program,
    processes_with,
    unique_sleep_seconds,
    until,
    wait_for_job,
    wait_for_output,
)

EVERY_BYTE = bytes(range(256)) * 64
RUNTIMES_OWN = {"PATH", "HOME", "TMPDIR", "PWD", "SHELL", "USER", "LOGNAME", "LANG", "TERM", "SHLVL", "_"}
RUNTIMES_OWN |= {
    "DOVECOTE_TASK",
    "PIP_BREAK_SYSTEM_PACKAGES",
    "NPM_CONFIG_PREFIX",
    "DOVECOTE_CALLBACK",
    "DOVECOTE_WORKSPACE",
}


@pytest.fixture(params=list(all_rigs()))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return each provider in turn, closed."""
    return all_rigs()[request.param](tmp_path)


@pytest.fixture
def sleep_seconds() -> str:
    """Return how long a command sleeps that must not be found afterwards."""
    return unique_sleep_seconds()


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return each provider, open; its sandboxes are destroyed afterwards."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


@pytest.fixture
async def sandbox(provider: Provider, rig: ProviderRig) -> Sandbox:
    """Return a sandbox."""
    return await provider.create(rig.spec())


async def test_a_result_tells_exit_code_and_both_streams(sandbox: Sandbox) -> None:
    """The exit code, stdout and stderr of a script come back apart."""
    result = await sandbox.run(ExecRequest(script="echo out; echo err >&2; exit 3"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert not result.ok
    assert not result.timed_out
    assert result.runtime == "bash"


async def test_a_signal_shows_in_the_exit_code(sandbox: Sandbox) -> None:
    """A command that dies of a signal has exit code 128 + its number."""
    result = await sandbox.run(ExecRequest(script="kill -SEGV $$"))
    assert result.exit_code == 128 + signal.SIGSEGV


async def test_what_fits_is_not_called_truncated(sandbox: Sandbox) -> None:
    """Output of exactly the limit is complete; one byte more is cut and marked."""
    exact = await sandbox.run(ExecRequest(script="printf %1024s x", output_limit=1024))
    assert (len(exact.stdout), exact.stdout_truncated) == (1024, False)
    over = await sandbox.run(ExecRequest(script="printf %1025s x >&2", output_limit=1024))
    assert (len(over.stderr), over.stderr_truncated, over.stdout_truncated) == (1024, True, False)


async def test_a_time_out_kills_the_whole_tree(sandbox: Sandbox, sleep_seconds: str) -> None:
    """On time-out the command and what it left in other sessions are dead when run returns."""
    script = f"(setsid sleep {sleep_seconds} &) ; setsid sleep {sleep_seconds} & sleep {sleep_seconds}"
    result = await sandbox.run(ExecRequest(script=f"echo begun; {script}", timeout=1))
    assert result.timed_out
    assert result.exit_code == 137
    assert result.stdout == b"begun\n"
    assert processes_with(sleep_seconds) == []


async def test_what_a_command_leaves_behind_dies_with_it(sandbox: Sandbox, sleep_seconds: str) -> None:
    """A daemon that closed its descriptors and left the session does not outlive its run."""
    daemon = f"setsid bash -c 'exec sleep {sleep_seconds} <&- >&- 2>&-' & "
    result = await sandbox.run(ExecRequest(script=f"{daemon} echo done"))
    assert result.stdout == b"done\n"
    assert processes_with(sleep_seconds) == []


async def _has(sandbox: Sandbox, name: str) -> bool:
    try:
        await sandbox.read(name, limit=1)
    except FileNotFoundError:
        return False
    return True


async def test_cancelling_leaves_no_orphan(sandbox: Sandbox, sleep_seconds: str) -> None:
    """When the caller is cancelled everything is dead before the cancellation arrives."""
    task = asyncio.ensure_future(sandbox.run(ExecRequest(script=f"touch begun; sleep {sleep_seconds}")))

    await until(lambda: _has(sandbox, "begun"))
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert processes_with(sleep_seconds) == []


async def test_cancelling_at_once_leaves_no_orphan(
    sandbox: Sandbox, rig: ProviderRig, sleep_seconds: str
) -> None:
    """A cancellation that comes while the sandbox is being made is as good as a late one."""
    for _ in range(10 if rig.mounts else 2):
        task = asyncio.ensure_future(sandbox.run(ExecRequest(script=f"sleep {sleep_seconds}")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    assert processes_with(sleep_seconds) == []


async def test_the_environment_is_what_was_given(provider: Provider, rig: ProviderRig) -> None:
    """A run sees the declared variables and the runtime's own, and the runtime's win."""
    spec = rig.spec(env={"GREETING": "hello wörld\n2", "PATH": "/nowhere", "HOME": "/nowhere", "EMPTY": ""})
    sandbox = await provider.create(spec)
    result = await sandbox.run(ExecRequest(script="env -0"))
    seen = dict(entry.split("=", 1) for entry in result.stdout.decode().split("\0") if entry)
    assert set(seen) - RUNTIMES_OWN == {"GREETING", "EMPTY"}
    assert seen["GREETING"] == "hello wörld\n2"
    assert "/nowhere" not in (seen["PATH"], seen["HOME"])


async def test_bytes_go_round_unchanged(sandbox: Sandbox) -> None:
    """Files and standard streams pass every byte unchanged."""
    await sandbox.write("deep/down/file.bin", EVERY_BYTE)
    assert await sandbox.read("deep/down/file.bin", limit=1 << 20) == EVERY_BYTE
    assert await sandbox.read("deep/down/file.bin", limit=10) == EVERY_BYTE[:10]
    echoed = await sandbox.run(ExecRequest(script="cat deep/down/file.bin -", stdin=EVERY_BYTE))
    assert echoed.stdout == EVERY_BYTE * 2


async def test_a_command_that_ignores_its_input_is_no_trouble(sandbox: Sandbox) -> None:
    """Unread input neither blocks nor fails the run."""
    result = await sandbox.run(ExecRequest(script="echo fine", stdin=b"x" * 1_000_000))
    assert result.stdout == b"fine\n"


async def test_the_working_directory_is_the_workspace(sandbox: Sandbox) -> None:
    """Commands start in the workspace, and $DOVECOTE_WORKSPACE names it."""
    result = await sandbox.run(ExecRequest(script='test "$PWD" = "$DOVECOTE_WORKSPACE" && echo here > place'))
    assert result.ok
    assert await sandbox.read("place", limit=10) == b"here\n"


async def test_a_read_only_workspace_is_not_written(provider: Provider, rig: ProviderRig) -> None:
    """On a read-only workspace a write is refused, by a command too where it is mounted."""
    if not rig.mounts:
        with pytest.raises(PermissionError):
            await (await provider.create(rig.spec(read_only=True))).write("kept", b"new")
        return
    rig.workspace.mkdir()
    (rig.workspace / "kept").write_text("old")
    sandbox = await provider.create(rig.spec(read_only=True))
    with pytest.raises(PermissionError):
        await sandbox.write("kept", b"new")
    result = await sandbox.run(ExecRequest(script="cat kept; echo new > kept"))
    assert result.stdout == b"old"
    assert not rig.isolated or (rig.workspace / "kept").read_text() == "old"


async def test_paths_stay_inside(sandbox: Sandbox) -> None:
    """Absolute paths, climbing paths and links that lead out are refused; what is not there is not found."""
    await sandbox.run(
        ExecRequest(script="ln -s /etc/hostname leak; ln -s /etc out; ln -s ../.. up; ln -s own link")
    )
    await sandbox.write("own", b"mine")
    for path in ("/etc/hostname", "../secret", "a/../../b", "leak", "out/hostname", "up/x", "nul\0"):
        with pytest.raises(UnsafePath):
            await sandbox.read(path, limit=10)
        with pytest.raises(UnsafePath):
            await sandbox.write(path, b"x")
    assert await sandbox.read("link", limit=10) == b"mine"
    with pytest.raises(FileNotFoundError):
        await sandbox.read("absent", limit=10)


async def test_a_label_is_one_sandbox(provider: Provider, rig: ProviderRig) -> None:
    """Creating twice with one label gives one sandbox, listed once, by its prefix."""
    first, second = await provider.create(rig.spec()), await provider.create(rig.spec())
    label = f"{rig.label}:other"
    other = await provider.create(rig.spec(label=label))
    assert first.id == second.id != other.id
    assert await provider.list(rig.label) == sorted([(first.id, rig.label), (other.id, label)])
    assert await provider.list(label) == [(other.id, label)]
    assert (first.id, rig.label) in await provider.list()


async def test_a_sandbox_is_found_again_by_its_id(rig: ProviderRig) -> None:
    """Another opening of the provider connects to what an earlier one made."""
    async with rig.open() as provider:
        made = await provider.create(rig.spec(persistent=True))
        await made.run(ExecRequest(script="echo kept > ~/kept"))
    async with rig.open() as provider:
        found = await provider.connect(made.id, rig.spec(persistent=True))
        assert (await found.run(ExecRequest(script="cat ~/kept"))).stdout == b"kept\n"
        await provider.destroy(made.id)


async def test_gone_is_gone(provider: Provider, sandbox: Sandbox, rig: ProviderRig) -> None:
    """Destroying twice is no error; afterwards, and for an unknown id, every call raises SandboxGone."""
    await sandbox.write("file", b"kept")
    await provider.destroy(sandbox.id)
    await provider.destroy(sandbox.id)
    with pytest.raises(SandboxGone):
        await sandbox.run(ExecRequest(script="true"))
    with pytest.raises(SandboxGone):
        await provider.connect(sandbox.id, rig.spec())
    with pytest.raises(SandboxGone):
        await provider.connect(SandboxId("../../etc"), rig.spec())
    assert not rig.mounts or (rig.workspace / "file").read_bytes() == b"kept"


async def test_suspending_keeps_the_files(provider: Provider, sandbox: Sandbox, rig: ProviderRig) -> None:
    """A suspended sandbox has its files when it is used again; a provider without the feature refuses."""
    await sandbox.write("file", b"kept")
    if Feature.SUSPEND not in rig.plugin.features:
        with pytest.raises(FeatureUnsupported):
            await sandbox.suspend()
        return
    await sandbox.suspend()
    again = await provider.connect(sandbox.id, rig.spec())
    assert await again.read("file", limit=10) == b"kept"


async def test_an_undeclared_feature_is_unsupported(provider: Provider, rig: ProviderRig) -> None:
    """A network restricted to domains is made where it is declared and Unsupported elsewhere."""
    spec = rig.spec(network=Network.RESTRICTED, allow_domains=("example.com",))
    if Feature.RESTRICTED_NETWORK in rig.plugin.features:
        await provider.create(spec)
        return
    with pytest.raises(FeatureUnsupported):
        await provider.create(spec)


async def test_a_job_outlives_its_sandbox_object(
    provider: Provider, sandbox: Sandbox, rig: ProviderRig
) -> None:
    """A job runs on without a connection, shows its output while it runs, and its exit code at the end."""
    await sandbox.spawn(
        BackgroundJob(
            id="job_1", token=TOKEN, script="echo begun; while ! test -e go; do sleep 0.05; done; exit 4"
        )
    )
    await wait_for_output(sandbox, "job_1", b"begun")
    del sandbox
    (sandbox_id, _) = (await provider.list(rig.label))[0]
    found = await provider.connect(sandbox_id, rig.spec())
    assert (await found.report("job_1")).state is BackgroundJobState.RUNNING
    await found.write("go", b"")
    report = await wait_for_job(found, "job_1")
    assert (report.state, report.exit_code, report.output) == (BackgroundJobState.EXITED, 4, b"begun\n")


async def test_a_job_is_started_once(sandbox: Sandbox) -> None:
    """Spawning one id many times, at once and after its end, runs it once; an unknown id is UNKNOWN."""
    job = BackgroundJob(id="job_1", token=TOKEN, script="echo once >> runs")
    await asyncio.gather(*(sandbox.spawn(job) for _ in range(4)))
    await wait_for_job(sandbox, "job_1")
    await sandbox.spawn(job)
    assert await sandbox.read("runs", limit=100) == b"once\n"
    assert (await sandbox.report("job_2")).state is BackgroundJobState.UNKNOWN


async def test_a_jobs_output_is_its_end(sandbox: Sandbox) -> None:
    """Of stdout and stderr merged the last bytes are kept, and the cut is marked."""
    script = "for i in $(seq 20000); do echo $i; done; echo bad >&2; echo last"
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script, output_limit=1000))
    report = await wait_for_job(sandbox, "job_1")
    assert report.truncated
    assert len(report.output) == 1000
    assert report.output.endswith(b"\n20000\nbad\nlast\n")


async def test_a_job_is_told_to_the_gateway(sandbox: Sandbox, rig: ProviderRig) -> None:
    """When a job ends, its outcome and its own token arrive at the callback; after a 5xx once more."""
    if Feature.CALLBACK not in rig.plugin.features:
        pytest.skip("nothing leads from the sandbox to the gateway: the reconciler asks")
    gateway = rig.callback_server
    gateway.statuses = [503]
    async with gateway.listening():
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script="echo result; exit 9"))
        for _ in range(2):
            told = await gateway.next()
            assert (told.job_id, told.exit_code, told.output) == ("job_1", 9, "result\n")
            assert (told.authorization, told.truncated) == (f"Bearer {TOKEN}", False)
        await sandbox.spawn(BackgroundJob(id="job_2", token=TOKEN, script="seq 5000", output_limit=10))
        cut = await gateway.next()
        assert (cut.output, cut.truncated) == ("4999\n5000\n", True)


async def test_a_job_waits_for_a_gateway_that_is_down(sandbox: Sandbox, rig: ProviderRig) -> None:
    """A callback without a listener is repeated until there is one."""
    if Feature.CALLBACK not in rig.plugin.features:
        pytest.skip("nothing leads from the sandbox to the gateway: the reconciler asks")
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script="exit 0"))
    await wait_for_job(sandbox, "job_1")
    async with rig.callback_server.listening() as gateway:
        assert (await gateway.next()).job_id == "job_1"


async def test_stopping_asks_first(sandbox: Sandbox, sleep_seconds: str) -> None:
    """A stopped job gets TERM and may clean up; its exit code is recorded; stopping twice is no error."""
    script = f"trap 'echo cleaned; exit 3' TERM; echo begun; sleep {sleep_seconds} & wait"
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
    await wait_for_output(sandbox, "job_1", b"begun")
    await sandbox.stop("job_1")
    report = await sandbox.report("job_1")
    assert (report.state, report.exit_code) == (BackgroundJobState.EXITED, 3)
    assert report.output == b"begun\ncleaned\n"
    await sandbox.stop("job_1")
    await sandbox.stop("never heard of")
    assert processes_with(sleep_seconds) == []


async def test_stopping_insists(sandbox: Sandbox, sleep_seconds: str) -> None:
    """A job that ignores TERM is killed with its whole tree."""
    script = f"trap '' TERM; setsid sleep {sleep_seconds} & echo begun; while true; do sleep 0.1; done"
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
    await wait_for_output(sandbox, "job_1", b"begun")
    await sandbox.stop("job_1")
    report = await sandbox.report("job_1")
    assert (report.state, report.exit_code) == (BackgroundJobState.EXITED, 137)
    assert processes_with(sleep_seconds) == []


async def test_a_job_has_a_time_limit_of_its_own(sandbox: Sandbox, sleep_seconds: str) -> None:
    """A job past its time-out is ended."""
    await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=f"sleep {sleep_seconds}", timeout=0.5))
    assert (await wait_for_job(sandbox, "job_1")).exit_code == 128 + signal.SIGTERM
    assert processes_with(sleep_seconds) == []


async def test_a_job_outlives_the_process_that_started_it(rig: ProviderRig) -> None:
    """A process spawns a job and dies by kill -9; another one finds the job by its id and reads its end."""
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        script = "echo begun; while ! test -e go; do sleep 0.05; done; exit 6"
        job = f"BackgroundJob(id='job_1', token='t', script={script!r})"
        spawn = f"await (await provider.create(spec)).spawn({job})"
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            other_process_program(rig, f"{spawn}; os.kill(os.getpid(), 9)"),
            stdout=sys.stderr.fileno(),
        )
        assert await child.wait() == -signal.SIGKILL
        await wait_for_output(sandbox, "job_1", b"begun")
        assert (await sandbox.report("job_1")).state is BackgroundJobState.RUNNING
        await sandbox.write("go", b"")
        assert (await wait_for_job(sandbox, "job_1")).exit_code == 6
        await provider.destroy(sandbox.id)


async def test_a_run_does_not_outlive_the_process_that_started_it(
    rig: ProviderRig, sleep_seconds: str
) -> None:
    """When a gateway dies by kill -9 its running commands die too, and the next one sweeps up after it."""
    if not rig.mounts:
        pytest.skip("on a machine elsewhere the command goes on until its own time-out")
    run = f"await (await provider.create(spec)).run(ExecRequest(script='touch begun; sleep {sleep_seconds}'))"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", other_process_program(rig, run))

    async def begun() -> bool:
        return (rig.workspace / "begun").exists()

    async def dead() -> bool:
        return not processes_with(f"sleep\x00{sleep_seconds}")

    await until(begun)
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    await until(dead)
    async with rig.open() as provider:
        ((sandbox_id, _),) = await provider.list(rig.label)
        await provider.destroy(sandbox_id)
