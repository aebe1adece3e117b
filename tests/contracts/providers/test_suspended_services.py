"""Services are suspended with their sandbox: they pause in it, or are started again after it wakes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from docker_rig import engine_rig
from repetitions import in_gate
from sandbox.errors import ProviderRefused
from sandbox.host.isolation.process_tree import is_stopped
from sandbox.lifecycle.services import SandboxServices
from sandbox.model import BackgroundJob, ExecRequest
from sandbox.port import Sandbox
from sandbox.testing.processes import processes_with, unique_sleep_seconds
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import until
from sandbox_rigs import all_rigs

FREEZING_PROVIDERS = {"host-control_groups", "host-rlimits", "docker-pause", "e2b-loopback"}
"""Ways in which processes are there again when a sandbox wakes."""

STOPPING_PROVIDERS = {"docker-engine", "daytona-loopback"}
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    STOPPING_PROVIDERS |= {"kubernetes-pods"}
IN_GATE = {"host-control_groups", "docker-pause", "daytona-loopback"}


@pytest.fixture(params=in_gate(sorted(FREEZING_PROVIDERS | STOPPING_PROVIDERS), IN_GATE))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return each provider in turn, closed."""
    if request.param == "docker-pause":
        return engine_rig("pause", tmp_path, suspend="pause")
    return all_rigs()[request.param](tmp_path)


@pytest.fixture
async def sandbox(rig: ProviderRig) -> AsyncIterator[Sandbox]:
    """Return a reserved sandbox."""
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec(persistent=True))
        yield sandbox
        await provider.destroy(sandbox.id)


async def test_services_sleep_with_their_sandbox_and_are_there_when_it_wakes(
    sandbox: Sandbox, rig: ProviderRig
) -> None:
    """Paused processes continue; others start again, which is reported; stopped ones never start."""
    services = SandboxServices(sandbox=sandbox)
    await services.start("beat", "echo begun >>~/begun; exec sleep 300")
    await services.start("over", "exec sleep 300")
    assert await services.stop("over")
    await sandbox.suspend()
    revived = await services.restart_lost()

    async def runs() -> bool:
        return [(one.name, one.state) for one in await services.list_all()] == [("beat", "running")]

    await until(runs)
    (beat,) = await services.list_all()
    kept = f"{rig.plugin.name}-{rig.name}" in FREEZING_PROVIDERS
    assert (revived, beat.run, beat.restarted) == (([], 1, False) if kept else (["beat"], 2, True))
    begun = (await sandbox.run(ExecRequest(script="cat ~/begun"))).stdout.count(b"begun")
    assert begun == beat.run
    assert await services.restart_lost() == []


async def test_one_that_was_stopped_is_started_again(sandbox: Sandbox, rig: ProviderRig) -> None:
    """A name is free again after a stop, for another command as well; two starts at once start one."""
    if rig.plugin.name != "host":
        pytest.skip("the same on every provider")
    services = SandboxServices(sandbox=sandbox)
    command = "echo begun >>~/begun; exec sleep 300"
    first, second = await asyncio.gather(services.start("web", command), services.start("web", command))
    assert {first.run, second.run} == {1}
    assert (await sandbox.run(ExecRequest(script="cat ~/begun"))).stdout == b"begun\n"
    assert await services.stop("web")
    assert await services.get("web") is None
    again = await services.start("web", "echo another; exec sleep 300")
    assert (again.run, again.state) == (2, "running")


async def test_a_job_keeps_it_awake_and_so_does_a_service_that_is_to(
    sandbox: Sandbox, rig: ProviderRig
) -> None:
    """Only what rests lets the sandbox sleep."""
    await SandboxServices(sandbox=sandbox).start("beat", "exec sleep 300")
    await sandbox.spawn(BackgroundJob(id="job", script="exec sleep 300", token=TOKEN))
    with pytest.raises(ProviderRefused):
        await sandbox.suspend()
    await sandbox.stop("job")
    if rig.plugin.name == "host":
        await SandboxServices(sandbox=sandbox, sleeps_with_sandbox=False).start("awake", "exec sleep 300")
        with pytest.raises(ProviderRefused):
            await sandbox.suspend()
        assert await SandboxServices(sandbox=sandbox).stop("awake")
    await sandbox.suspend()


async def test_services_that_sleep_on_this_machine_are_frozen(sandbox: Sandbox, rig: ProviderRig) -> None:
    """No process of it goes on, by its group or by a signal; destroyed in its sleep, nothing is left."""
    if rig.plugin.name != "host":
        pytest.skip("the provider's own means are tried by its own tests")
    nap = unique_sleep_seconds()
    await SandboxServices(sandbox=sandbox).start("beat", f"while :; do sleep {nap} & wait; done")
    assert not all(_is_frozen(pid) for pid in processes_with(nap))
    await sandbox.suspend()
    assert processes_with(nap)
    assert all(_is_frozen(pid) for pid in processes_with(nap))
    await sandbox.run(ExecRequest(script="true"))
    assert not all(_is_frozen(pid) for pid in processes_with(nap))
    await sandbox.suspend()
    async with rig.open() as provider:
        await provider.destroy(sandbox.id)
    assert not processes_with(nap)


def _is_frozen(pid: int) -> bool:
    """Whether a process is stopped, or its group is frozen."""
    groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    own = next((line.partition("::")[2].lstrip("/") for line in groups if line.startswith("0::")), "")
    mounts = Path("/sys/fs/cgroup")
    frozen = [place / own / "cgroup.freeze" for place in (mounts, mounts / "unified")]
    return is_stopped(pid) or any(file.exists() and file.read_text().strip() == "1" for file in frozen)
