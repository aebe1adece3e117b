"""A webhook sink with a circuit breaker: a failing endpoint is paused, and disabled after five days.

    closed ── five failures in a row ──▶ open (the endpoint's deliveries wait) ── time is over ──▶ closed

An open circuit is a pause of the destination: nothing is sent to the endpoint until it ends, so that a dead
receiver costs other endpoints nothing. No delivery waits longer than its own schedule would make it wait.
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
    """The stored health of endpoints, for all replicas."""

    async def record_failure(self, endpoint: str, now: datetime) -> datetime:
        """Store a failure; return since when no attempt has succeeded."""

    async def record_success(self, endpoint: str) -> None:
        """Store a success."""


def _now() -> datetime:
    return utc_now()


class CircuitBreakerSink(Sink):
    """Wraps a webhook sink: pauses failing endpoints and disables them after five days without success."""

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
        """Attempt once by the wrapped sink, and update the endpoint's health by the outcome."""
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
            why = f"disabled after {DISABLE_AFTER.days} days without a success; last error: {outcome.detail}"
            return replace(outcome, kind=OutcomeKind.GIVE_UP, disable_endpoint=True, detail=why)
        if count < FAILURE_THRESHOLD or outcome.pause_destination:
            return outcome
        return replace(outcome, pause_destination=True, retry_after=self.pause_seconds(count))

    def pause_seconds(self, failures: int) -> float:
        """Return the seconds for which an endpoint is paused after so many failures in a row."""
        return 0.5 * (
            self._schedule.delay_after(failures - FAILURE_THRESHOLD + 1) or self._schedule.delays[-1]
        )

    def _evict_oldest(self) -> None:
        while len(self._failures) > _MAX_ENDPOINTS:
            self._failures.popitem(last=False)
