"""Runs that wait: namespaces made before there is a command for them; a reserved sandbox answers at once.

Each is used for one command, as any run is, and has all that a run has; only its making is out of the way
when the command comes. It waits in the shell that will run it, and reads it from its stdin up to a NUL.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.errors import SandboxError
from sandbox.host.run.execution import Launch, Run
from sandbox.model import Command, SandboxId, Spec

WAIT = 'IFS= read -r -d "" s && exec /bin/bash -c "$s"'
LONGEST = 4096
"""Bytes of a script that is handed over: a shell reads a pipe byte by byte."""
MOST = 16
"""Sandboxes that have a run waiting, the ones used last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A run that waits; `ground` tells the directories it is bound to from others of their names."""

    run: Run
    spec: Spec
    ground: object


class Standbys:
    """The waiting runs of this process, one for each sandbox."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting: OrderedDict[SandboxId, Standby] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, sandbox: SandboxId, spec: Spec, ground: object, command: Command) -> Run | None:
        """Return the run that waits for this command, if there is one that fits."""
        found = self._waiting.pop(sandbox, None)
        if found is None:
            return None
        fits = found.spec == spec and found.ground == ground and not found.run.main.ended.is_set()
        if fits and len(command.script.encode("utf-8", "surrogateescape")) <= LONGEST:
            return found.run
        self._end(found)
        return None

    def prepare(self, sandbox: SandboxId, spec: Spec, ground: object, launch: Callable[[], Launch]) -> None:
        """Have a run wait for the next command; where none can be made, that command makes its own."""
        if self._closed or sandbox in self._waiting:
            return
        with contextlib.suppress(SandboxError, OSError):
            made = launch()
            try:
                run = Run(made, stdin=True, waits=True)
            except SandboxError:
                made.group.remove()
                return
            self._waiting[sandbox] = Standby(run=run, spec=spec, ground=ground)
        while len(self._waiting) > self._most:
            self._end(self._waiting.popitem(last=False)[1])

    def _end(self, standby: Standby) -> None:
        task = asyncio.create_task(_perish(standby.run))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def drop(self, sandbox: SandboxId) -> None:
        """End the run that waits in a sandbox."""
        found = self._waiting.pop(sandbox, None)
        if found is not None:
            await _perish(found.run)

    async def close(self) -> None:
        """End every waiting run; none is made any more."""
        self._closed = True
        for sandbox in list(self._waiting):
            await self.drop(sandbox)
        if self._ending:
            await asyncio.wait(self._ending)


async def _perish(run: Run) -> None:
    with contextlib.suppress(SandboxError):
        await run.perish()
