"""When destroying a host sandbox returns, its processes are gone, however late they start or end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.host.run.execution import KILLED
from sandbox.host.run.launch import start_process
from sandbox.lifecycle.external import open_provider
from sandbox.model import BackgroundJob, ExecRequest
from sandbox.testing.processes import processes_with, unique_sleep_seconds
from sandbox.testing.rig import TOKEN
from sandbox.testing.waiting import until, wait_for_output
from sandbox_rigs import VARIANTS


class SlowExecutor(ThreadPoolExecutor):
    """Returns the started process of a run only when the test allows it."""

    def __init__(self) -> None:
        super().__init__(3)
        self.started, self.released = threading.Event(), threading.Event()

    def submit(self, call: Callable[..., Any], /, *values: Any, **named: Any) -> Future[Any]:
        """Hold what starts a process, after it has done so."""
        if getattr(call, "func", None) is start_process:
            return super().submit(self._hold, call)
        return super().submit(call, *values, **named)

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
        await until(lambda: asyncio.to_thread(_runs, f"sleep\0{seconds}\0"))
        await provider.destroy(sandbox.id)
        executor.released.set()
        assert (await running).exit_code == KILLED
    assert not processes_with(seconds)


def _runs(command: str) -> bool:
    return any(processes_with(command))


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
    with suppress(BlockingIOError):  # it was changed just now: processes of one session have one group
        Path(f"/proc/{pid}/autogroup").write_text("19")
