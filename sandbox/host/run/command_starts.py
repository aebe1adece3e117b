"""Limit how many commands start at once on this machine.

For a start, the kernel creates namespaces, mounts and control groups under locks that all processes share.
When many commands start together, each waits for these locks and for a processor, and those of an account
that runs few wait with them. A command that waits here has no process yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sandbox.port import StartGate

START_SECONDS = 0.05
"""The seconds for which a new process counts as starting, if it does not end before.

bubblewrap does not tell when it executes the command. A start takes 15 to 25 ms on an idle machine.
"""


class CommandStarts:
    """Admits the starts of commands through the gateway's gate; without one, all at once."""

    def __init__(self, gate: StartGate | None) -> None:
        self._gate = gate

    @property
    def is_contended(self) -> bool:
        """Return whether a command waits to start."""
        return self._gate is not None and self._gate.is_contended

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[Callable[[], None]]:
        """Hold a place until the block ends, or START_SECONDS after the call of the yielded function."""
        if self._gate is None:
            yield lambda: None
            return
        place = _Place(await self._gate.enter())
        try:
            yield place.leave_soon
        finally:
            place.leave()


class _Place:
    """A held place, which is given back once."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back
        self._timer: asyncio.TimerHandle | None = None

    def leave_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(START_SECONDS, self.leave)

    def leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()
