"""The sends in progress at one destination."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from delivery.workers.attempts import EndedSend

MAX_IN_FLIGHT = 8
"""Sends of one destination with an order that may be in progress at once."""

BATCH = 20
"""Sends of one destination without an order that may be in progress at once."""

REFILL_SECONDS = 0.01
"""Seconds that ended sends wait for others, so that one transaction records them all."""


@dataclass(slots=True)
class ConcurrentSends:
    """The sends in progress at a destination without an order: their tasks, and the deliveries' ids."""

    tasks: dict[asyncio.Task[EndedSend], str] = field(default_factory=dict)

    def add(self, delivery: str, task: asyncio.Task[EndedSend]) -> None:
        """Add the task that sends a delivery."""
        self.tasks[task] = delivery

    @property
    def ids(self) -> Collection[str]:
        """The ids of the deliveries that are being sent."""
        return set(self.tasks.values())

    async def abandon(self) -> None:
        """Leave the contexts of sends whose outcome will not be recorded."""
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                await task.result().exit_stack.aclose()

    async def wait_for_ends(self, woken: asyncio.Event) -> list[EndedSend]:
        """Wait until a send has ended, and briefly for others; return the results of those that have ended.

        If more can be sent, a wake-up ends the wait too. Raises the exception of a send that failed.
        """
        waking = asyncio.create_task(woken.wait())
        awaited = {waking, *self.tasks} if len(self.tasks) < BATCH else set(self.tasks)
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        woken.clear()
        done = {task for task in self.tasks if task.done()}
        if done:
            done, _ = await asyncio.wait(self.tasks, timeout=REFILL_SECONDS)
        ended = [task.result() for task in done]  # if one has failed, `abandon` finds the others
        for task in done:
            del self.tasks[task]
        return ended


@dataclass(slots=True)
class InFlight:
    """The sends in progress at one destination: their tasks, and when each began."""

    slow_seconds: float
    sends: dict[asyncio.Task[bool], tuple[str, float]] = field(default_factory=dict)

    def add(self, delivery: str, task: asyncio.Task[bool]) -> None:
        """Add the task that sends a delivery."""
        self.sends[task] = (delivery, time.monotonic())

    @property
    def ids(self) -> Collection[str]:
        """The ids of the deliveries that are being sent."""
        return {delivery for delivery, _ in self.sends.values()}

    def remaining(self) -> float:
        """Return the seconds until every send in progress counts as slow; 0: another one may begin."""
        if len(self.sends) >= MAX_IN_FLIGHT:
            return self.slow_seconds
        newest = max((began for _, began in self.sends.values()), default=float("-inf"))
        return max(0.0, newest + self.slow_seconds - time.monotonic())

    async def wait_for_end(self, seconds: float) -> bool:
        """Wait until a send has ended, at most this long; return whether more may be unfinished.

        The result of a send's task is whether anything was unfinished at the destination after it.
        """
        done, _ = await asyncio.wait(self.sends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self.sends[task]
        return all(task.cancelled() or task.exception() or task.result() for task in done)
