"""Show what a running turn waits for, such as the start of its sandbox: an event, and a step in chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from channels.message import StepState, ToolStep
from delivery.background import log_errors
from delivery.errors import LeaseLost
from delivery.events.event import Event, EventType
from gateway.turns.attempt import TurnAttempt
from sandbox.lifecycle.waits import Wait, waits_reported_to


@asynccontextmanager
async def waits_shown(attempt: TurnAttempt) -> AsyncIterator[None]:
    """Show the long waits of the block."""
    waits = _ShownWaits(attempt)
    try:
        with waits_reported_to(waits.on_wait):
            yield
    finally:
        await waits.close()


class _ShownWaits:
    """Reports each kind of wait once: each file of a bucket may be waited for."""

    def __init__(self, attempt: TurnAttempt) -> None:
        self._attempt = attempt
        self._reports: dict[Wait, asyncio.Task[None]] = {}
        self._closed = False

    def on_wait(self, wait: Wait, begins: bool) -> None:  # noqa: FBT001 - as OnWait has it
        if self._attempt.show_step is not None:
            state = StepState.RUNNING if begins else StepState.DONE
            self._attempt.show_step(ToolStep(id=f"wait:{wait}", title=wait, state=state, is_wait=True))
        if begins and wait not in self._reports and not self._closed:  # closed: what outlives the turn waits
            self._reports[wait] = asyncio.create_task(self._report(wait))

    async def _report(self, wait: Wait) -> None:
        turn = self._attempt.turn
        with log_errors("turn.wait", turn=turn.id), suppress(LeaseLost):
            async with self._attempt.begin("turn.wait", runs_again=True) as tx:
                data = {"attempt": turn.attempt, "reason": str(wait)}
                tx.emit(Event.now(EventType.TURN_WAITING, turn.conversation, data, turn=turn.id))

    async def close(self) -> None:
        self._closed = True
        for report in self._reports.values():
            report.cancel()
        await asyncio.gather(*self._reports.values(), return_exceptions=True)
