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
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.retry_schedule import RetrySchedule

FAILURE_THRESHOLD = 5
DISABLE_AFTER = timedelta(days=5)
_MAX_ENDPOINTS = 10_000


class EndpointHealth(Protocol):
    """What is remembered of endpoints, for all replicas."""

    async def record_failure(self, endpoint: str, now: datetime) -> datetime:
        """Remember a failure; returns since when nothing has succeeded."""

    async def record_success(self, endpoint: str) -> None:
        """Remember a success."""


def _now() -> datetime:
    return utc_now()


class CircuitBreakerSink(Sink):
    """Adds a circuit breaker and the end after five days of failure to a webhook sink."""

    def __init__(
        self,
        inner: Sink,
        *,
        health: EndpointHealth,
        schedule: RetrySchedule,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._inner = inner
        self._health = health
        self._schedule = schedule
        self._now = now
        self._failures: OrderedDict[str, int] = OrderedDict()

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once, and draw conclusions about the endpoint."""
        outcome = await self._inner.send(delivery)
        if outcome.kind is OutcomeKind.DELIVERED:
            await self._handle_success(delivery.target)
        elif outcome.kind is OutcomeKind.RETRY:
            return await self._handle_failure(delivery.target, outcome)
        return outcome

    async def _handle_success(self, endpoint: str) -> None:
        if self._failures.pop(endpoint, 1):
            await self._health.record_success(endpoint)
        self._failures[endpoint] = 0
        self._evict_oldest()

    async def _handle_failure(self, endpoint: str, outcome: Outcome) -> Outcome:
        now, count = self._now(), self._failures.pop(endpoint, 0) + 1
        self._failures[endpoint] = count
        self._evict_oldest()
        since = await self._health.record_failure(endpoint, now)
        if now - since >= DISABLE_AFTER:
            why = f"disabled after {DISABLE_AFTER.days} days without one success; the last: {outcome.detail}"
            return replace(outcome, kind=OutcomeKind.GIVE_UP, disable_endpoint=True, detail=why)
        if count < FAILURE_THRESHOLD or outcome.pause_destination:
            return outcome
        return replace(outcome, pause_destination=True, retry_after=self.pause_seconds(count))

    def pause_seconds(self, failures: int) -> float:
        """Return how long an endpoint rests that failed so often in a row, in seconds."""
        return 0.5 * (
            self._schedule.delay_after(failures - FAILURE_THRESHOLD + 1) or self._schedule.delays[-1]
        )

    def _evict_oldest(self) -> None:
        while len(self._failures) > _MAX_ENDPOINTS:
            self._failures.popitem(last=False)
