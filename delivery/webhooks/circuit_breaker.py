"""A webhook sink that watches its endpoints: a dead one is left alone for a while, and given up in the end.

    closed ── five failures in a row ──▶ open (the endpoint's deliveries wait) ── time is over ──▶ closed

An open circuit is the destination's hold: nothing for the endpoint is attempted until it is over, so that a
dead receiver costs the others nothing. It never makes one delivery wait longer than its own schedule would.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from delivery.database.clock import utc_now
from delivery.deliveries.port import Delivery, Outcome, Sink, Verdict
from delivery.deliveries.retry_schedule import Schedule

IN_A_ROW = 5
GIVEN_UP_AFTER = timedelta(days=5)
_REMEMBERED = 10_000


class Standing(Protocol):
    """What is remembered of endpoints, for all replicas."""

    async def failed(self, endpoint: str, now: datetime) -> datetime:
        """Remember a failure; returns since when nothing has succeeded."""

    async def succeeded(self, endpoint: str) -> None:
        """Remember a success."""


def _now() -> datetime:
    return utc_now()


class WatchedSink(Sink):
    """Adds a circuit breaker and the end after five days of failure to a webhook sink."""

    def __init__(
        self, inner: Sink, *, standing: Standing, schedule: Schedule, now: Callable[[], datetime] = _now
    ) -> None:
        self._inner = inner
        self._standing = standing
        self._schedule = schedule
        self._now = now
        self._failures: OrderedDict[str, int] = OrderedDict()

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once, and draw conclusions about the endpoint."""
        outcome = await self._inner.send(delivery)
        if outcome.verdict is Verdict.DELIVERED:
            await self._recover(delivery.target)
        elif outcome.verdict is Verdict.RETRY:
            return await self._conclude(delivery.target, outcome)
        return outcome

    async def _recover(self, endpoint: str) -> None:
        if self._failures.pop(endpoint, 1):
            await self._standing.succeeded(endpoint)
        self._failures[endpoint] = 0
        self._bound()

    async def _conclude(self, endpoint: str, outcome: Outcome) -> Outcome:
        now, count = self._now(), self._failures.pop(endpoint, 0) + 1
        self._failures[endpoint] = count
        self._bound()
        since = await self._standing.failed(endpoint, now)
        if now - since >= GIVEN_UP_AFTER:
            why = f"disabled after {GIVEN_UP_AFTER.days} days without one success; the last: {outcome.detail}"
            return replace(outcome, verdict=Verdict.GIVE_UP, disable=True, detail=why)
        if count < IN_A_ROW or outcome.hold:
            return outcome
        return replace(outcome, hold=True, retry_after=self.pause(count))

    def pause(self, failures: int) -> float:
        """Return how long an endpoint rests that failed so often in a row, in seconds."""
        return 0.5 * (self._schedule.step(failures - IN_A_ROW + 1) or self._schedule.steps[-1])

    def _bound(self) -> None:
        while len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)
