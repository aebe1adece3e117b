"""Control groups of host sandboxes: accounts share the processors, and dead gateways leave no group."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox.host.isolation import cgroups
from sandbox.host.provider import cgroup_tag
from sandbox.model import ExecRequest
from sandbox.testing.processes import other_process_program, processes_with, unique_sleep_seconds
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import VARIANTS


@pytest.fixture
def rig(tmp_path: Path) -> ProviderRig:
    """Return the host provider with control groups."""
    return VARIANTS["host"]["control_groups"](tmp_path)


async def test_accounts_share_the_processors(rig: ProviderRig) -> None:
    """A command is in the group of its account, which the kernel weighs against those of other accounts."""
    tag = cgroup_tag(rig.provider_context.state)
    for account in ("one", "other"):
        async with rig.open() as provider:
            sandbox = await provider.create(rig.spec(label=f"{rig.label}{account}", account=account))
            seconds = unique_sleep_seconds()
            running = asyncio.create_task(sandbox.run(ExecRequest(script=f"sleep {seconds}", timeout=60)))
            groups = await _groups_of(f"sleep\0{seconds}\0")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await provider.destroy(sandbox.id)
        ours = [line.split(tag)[1] for line in groups.splitlines() if tag in line]
        if not ours:
            pytest.skip("no control groups can be created on this machine")
        assert all(group.startswith(f"/account-{account}/{sandbox.id}") for group in ours)
        assert any("/run-" in group for group in ours)
    assert not [group for group in _all_groups() if f"/{tag}/" in group]


async def test_dead_gateways_leave_no_control_group(rig: ProviderRig) -> None:
    """The groups of a gateway that died by kill -9 are removed by the next one."""
    script = f"touch begun; kill -9 $PPID; sleep {unique_sleep_seconds()}"
    run = f"await (await provider.create(spec)).run(ExecRequest(script={script!r}))"
    body = f"asyncio.get_running_loop().call_later(1, os.kill, os.getpid(), 9); {run}"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", other_process_program(rig, body))
    assert await child.wait() == -signal.SIGKILL
    async with rig.open() as provider:
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)
    tag = cgroup_tag(rig.provider_context.state)
    assert not [group for group in _all_groups() if f"/{tag}/" in group and "/run-" in group]


def _all_groups() -> list[str]:
    """Return the machine's groups; not by glob, which fails when another test's groups go away during it."""
    return [f"{place}/{name}" for place, below, _ in os.walk(cgroups.CGROUP_MOUNT) for name in below]


async def _groups_of(command: str) -> str:
    """Wait for the process with this command line and return its control groups."""
    while True:
        for process in (Path("/proc", str(pid)) for pid in processes_with(command)):
            with suppress(FileNotFoundError, ProcessLookupError):
                if _read(process / "cmdline") == command:
                    return _read(process / "cgroup")
        await asyncio.sleep(0.01)


def _read(path: Path) -> str:
    return path.read_text()
