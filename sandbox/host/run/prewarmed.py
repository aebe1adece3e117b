"""Create a reserved sandbox's namespaces before its next command, so that it starts at once.

Each prewarmed run is used for one command and has everything that a run has. It waits in the shell that will
run the command and reads it from its stdin up to a NUL.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.errors import SandboxError
from sandbox.host.run.execution import Run
from sandbox.model import ExecRequest, SandboxId, SandboxSpec

READ_SCRIPT = 'IFS= read -r -d "" s && exec /bin/bash -c "$s"'
MAX_SCRIPT_BYTES = 4096
"""The longest script, in bytes, that is passed this way: a shell reads a pipe byte by byte."""
MAX_PREWARMED = 16
"""The most sandboxes with a prewarmed run; the least recently used ones lose theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmedRun:
    """A waiting run; `directory_ids` distinguish its directories from later ones of the same names."""

    run: Run
    spec: SandboxSpec
    directory_ids: object


StartRun = Callable[[], Awaitable[PrewarmedRun]]
"""Starts a run that reads its command from its stdin."""


class PrewarmedRuns:
    """The prewarmed runs of this process, one per sandbox."""

    def __init__(self, limit: int = MAX_PREWARMED) -> None:
        self._limit = limit
        self._waiting: OrderedDict[SandboxId, PrewarmedRun] = OrderedDict()
        self._starting: dict[SandboxId, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def acquire(
        self, sandbox: SandboxId, spec: SandboxSpec, directory_ids: object, command: ExecRequest
    ) -> Run | None:
        """Return the prewarmed run for this command if one fits."""
        found = self._waiting.pop(sandbox, None)
        if found is None:
            return None
        fits = (
            found.spec == spec
            and found.directory_ids == directory_ids
            and not found.run.main_process.ended.is_set()
        )
        if fits and len(command.script.encode("utf-8", "surrogateescape")) <= MAX_SCRIPT_BYTES:
            return found.run
        self._stop_soon(found)
        return None

    def prepare(self, sandbox: SandboxId, start: StartRun) -> None:
        """Start a run for the next command, soon; if that fails, the command starts its own."""
        if not self._closed and sandbox not in self._waiting and sandbox not in self._starting:
            starting = asyncio.create_task(self._prepare(sandbox, start))
            self._starting[sandbox] = starting
            starting.add_done_callback(lambda _: self._starting.pop(sandbox))

    async def _prepare(self, sandbox: SandboxId, start: StartRun) -> None:
        with contextlib.suppress(SandboxError, OSError):
            self._waiting[sandbox] = await start()
        while len(self._waiting) > self._limit:
            self._stop_soon(self._waiting.popitem(last=False)[1])

    async def wait_prepared(self) -> None:
        """Wait until the runs that are being started wait for their commands."""
        if self._starting:
            await asyncio.wait(self._starting.values())

    def _stop_soon(self, prewarmed: PrewarmedRun) -> None:
        task = asyncio.create_task(_kill(prewarmed.run))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def stop(self, sandbox: SandboxId) -> None:
        """End the prewarmed run of a sandbox."""
        if (starting := self._starting.get(sandbox)) is not None:
            await asyncio.wait({starting})
        found = self._waiting.pop(sandbox, None)
        if found is not None:
            await _kill(found.run)

    async def close(self) -> None:
        """End every prewarmed run; no more are created."""
        self._closed = True
        for sandbox in [*self._waiting, *self._starting]:
            await self.stop(sandbox)
        if self._ending:
            await asyncio.wait(self._ending)


async def _kill(run: Run) -> None:
    with contextlib.suppress(SandboxError):
        await run.kill_all()
