"""Accounts share the processors by control groups; destroyed sandboxes and dead gateways leave nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.host.isolation import cgroups
from sandbox.host.provider import cgroup_tag
from sandbox.host.run.execution import KILLED
from sandbox.host.run.launch import start_process
from sandbox.lifecycle.external import open_provider
from sandbox.model import BackgroundJob, ExecRequest
from sandbox.testing.processes import other_process_program, processes_with, unique_sleep_seconds
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import wait_for_output
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


class SlowExecutor(ThreadPoolExecutor):
    """Returns the started process of a run only when the test allows it."""

    def __init__(self) -> None:
        super().__init__(3)
        self.started, self.released = threading.Event(), threading.Event()

    def submit(self, call: Callable[..., Any], /, *values: Any, **named: Any) -> Future[Any]:
        """Hold what starts a process, after it has done so."""
        is_start = getattr(call, "func", None) is start_process
        return super().submit(
            self._hold if is_start else call, *((call,) if is_start else ()), *values, **named
        )

    def _hold(self, start: Callable[[], Any]) -> Any:
        started = start()
        self.started.set()
        self.released.wait()
        return started


@pytest.mark.parametrize("way", ["control_groups", "rlimits"])
async def test_a_command_whose_sandbox_is_destroyed_while_it_is_started_ends(
    tmp_path: Path, way: str
) -> None:
    """The sandbox is removed before the gateway tracks the process, with and without control groups."""
    rig, seconds = VARIANTS["host"][way](tmp_path), unique_sleep_seconds()
    context = replace(rig.provider_context, executor=(executor := SlowExecutor()))
    async with open_provider(rig.plugin, rig.settings, context) as provider:
        sandbox = await provider.create(rig.spec())
        running = asyncio.create_task(sandbox.run(ExecRequest(script=f"sleep {seconds}", timeout=60)))
        await asyncio.to_thread(executor.started.wait)
        await _groups_of(f"sleep\0{seconds}\0")
        await provider.destroy(sandbox.id)
        executor.released.set()
        assert (await running).exit_code == KILLED
    assert not processes_with(seconds)


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.fixture
def busy_processors() -> Iterator[None]:
    """Other sessions that use all processors."""
    loops = [
        subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"], start_new_session=True)
        for _ in range(3 * (os.cpu_count() or 1))
    ]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="the kernel has no groups of sessions (autogroup)")
@pytest.mark.usefixtures("busy_processors")
async def test_processes_that_die_slowly_are_waited_for(tmp_path: Path) -> None:
    """A killed process ends only when it is given a processor, which the lowest priority delays."""
    rig, seconds = VARIANTS["host"]["rlimits"](tmp_path), unique_sleep_seconds()
    script = f"for number in 1 2 3 4 5; do sleep {seconds} & done; echo begun; wait"
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
        await wait_for_output(sandbox, "job_1", b"begun")
        for pid in processes_with(seconds):
            _lower_priority(pid)
        await provider.destroy(sandbox.id)
        assert processes_with(seconds) == []


def _lower_priority(pid: int) -> None:
    Path(f"/proc/{pid}/autogroup").write_text("19")
