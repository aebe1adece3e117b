"""The bounds of a running turn: it is cancelled, its lease is lost, its time is over, the gateway stops.

Nothing but the agent runs in a task: each bound is a callback or a timer, and the first one that is reached
ends the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from delivery.broker.port import Lease
from delivery.errors import DeliveryError


class TurnCancelled(Exception):
    """The turn was cancelled."""


class Drained(Exception):
    """The gateway stops, and the turn goes back into the queue."""


class TurnBounds:
    """Runs one attempt until it ends or a bound is reached; `reach` may be called at any time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []

    def reach(self, reason: BaseException | None) -> None:
        """End the attempt with an exception; None: it has ended by itself. Only the first call counts."""
        if not self._first.done():
            self._first.set_result(reason)

    def reach_after(self, seconds: float, reason: BaseException) -> None:
        """Reach a bound after so many seconds."""
        self._timers.append(self._loop.call_later(seconds, self.reach, reason))

    def cancel(self) -> None:
        """End the attempt because its turn was cancelled."""
        self.reach(TurnCancelled())

    async def run(self, agent: Coroutine[Any, Any, None], lease: Lease) -> None:
        """Run the agent in a task of its own, which has ended when this returns; raises the bound's reason.

        An agent that has ended counts, also if a bound was reached at the same moment.
        """
        running = asyncio.create_task(agent)
        running.add_done_callback(lambda _task: self.reach(None))
        unsubscribe = lease.on_lost(lambda: self.reach(DeliveryError("the lease was lost")))
        try:
            reason = await self._first
            if reason is None or running.done():
                return running.result()
            raise reason
        finally:
            unsubscribe()
            for timer in self._timers:
                timer.cancel()
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


class DrainedTurns:
    """Gives running turns `timeout` seconds from the moment at which the gateway stops."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._running: set[TurnBounds] = set()
        self._stops = False

    @contextmanager
    def track(self, bounds: TurnBounds) -> Iterator[None]:
        """Drain a turn that runs during the block."""
        self._running.add(bounds)
        if self._stops:
            self._drain(bounds)
        try:
            yield
        finally:
            self._running.discard(bounds)

    async def run(self, stop: asyncio.Event) -> None:
        """Wait for the stop, and let the time of the running turns begin."""
        await stop.wait()
        self._stops = True
        for bounds in self._running:
            self._drain(bounds)

    def _drain(self, bounds: TurnBounds) -> None:
        bounds.reach_after(self._timeout, Drained())
