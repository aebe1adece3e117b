"""A webhook sink with a circuit breaker: a failing endpoint is paused, and disabled after five days.

    closed ── only failures for ten seconds, at least five ──▶ open (deliveries wait) ── pause over ──▶ closed

An open circuit is a pause of the destination: nothing is sent to the endpoint until it ends, so that a dead
receiver costs other endpoints nothing. The pause is half of the time for which the endpoint has failed, and
at most an hour. So it depends on the length of an outage and not on the number of events during it: a
receiver that restarts is not paused, however many events it misses.

The first attempt of an event never disables the endpoint: five days may have passed without any event. A
clock that jumps, or a machine that slept, makes minutes look like days. So this process must have seen the
endpoint fail for an hour as well, in which the clock did not jump.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from delivery.database.clock import utc_now
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink

FAILURE_THRESHOLD = 5
OPEN_AFTER = timedelta(seconds=10)
"""The time without a success after which an endpoint is paused, if enough attempts have failed."""
MAX_PAUSE = timedelta(hours=1)
DISABLE_AFTER = timedelta(days=5)
DISABLE_AFTER_OBSERVED = timedelta(hours=1)
"""How long this process must have seen only failures, without a jump of the clock, before it disables."""
JUMP = timedelta(minutes=1)
"""How far the clock and the time that this process ran may differ between two failures."""
SUCCESS_STORED_EVERY = timedelta(hours=1)
"""How often a success of a healthy endpoint is stored: another replica, or an attempt at the same time, may
have stored a failure since.
"""
_MAX_ENDPOINTS = 10_000


class EndpointHealth(Protocol):
    """The stored health of endpoints, for all replicas."""

    async def record_failure(self, endpoint: str, now: datetime) -> datetime:
        """Store a failure; return since when no attempt has succeeded, or since its owner changed it."""

    async def record_success(self, endpoint: str) -> None:
        """Store a success."""


def _now() -> datetime:
    return utc_now()


@dataclass(slots=True, kw_only=True)
class _FailureStreak:
    """The failures of an endpoint since its last success or a jump of the clock, as this process knows them.

    `clock_offset` is the difference at the last failure between the clock and the time that this process ran.
    """

    began: datetime
    clock_offset: float
    count: int = 0

    def add(self, now: datetime, clock_offset: float) -> None:
        """Count a failure; it is the first one if the clock has jumped since the failure before it."""
        if abs(clock_offset - self.clock_offset) > JUMP.total_seconds():
            self.began, self.count = now, 0
        self.clock_offset = clock_offset
        self.count += 1

    def restart_after(self, since: datetime) -> None:
        """Begin again if the stored failures began later: a success elsewhere, or the owner, ended these."""
        if since > self.began:
            self.began, self.count = since, 1


def pause_after(failing_for: timedelta, failures: int) -> timedelta | None:
    """Return the pause of an endpoint after so many failures without a success; None: no pause (pure)."""
    if failures < FAILURE_THRESHOLD or failing_for < OPEN_AFTER:
        return None
    return min(failing_for / 2, MAX_PAUSE)


class CircuitBreakerSink(Sink):
    """Wraps a webhook sink: pauses failing endpoints and disables them after five days without success."""

    def __init__(
        self,
        inner: Sink,
        *,
        health: EndpointHealth,
        now: Callable[[], datetime] = _now,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._health = health
        self._now = now
        self._ticks = ticks
        self._called: OrderedDict[str, _FailureStreak | datetime] = OrderedDict()
        """The endpoints that were called last: their failures, or when a success was stored."""

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once by the wrapped sink, and update the endpoint's health by the outcome."""
        outcome = await self._inner.send(delivery)
        if outcome.kind is OutcomeKind.DELIVERED:
            await self._handle_success(delivery.target)
        elif outcome.kind is OutcomeKind.RETRY:
            return await self._handle_failure(delivery, outcome)
        return outcome

    async def _handle_success(self, endpoint: str) -> None:
        known, now = self._called.get(endpoint), self._now()
        if isinstance(known, datetime) and now - known < SUCCESS_STORED_EVERY:
            return
        self._store(endpoint, now)
        await self._health.record_success(endpoint)

    async def _handle_failure(self, delivery: Delivery, outcome: Outcome) -> Outcome:
        endpoint, now = delivery.target, self._now()
        clock_offset = now.timestamp() - self._ticks()
        known = self._called.get(endpoint)
        streak = (
            known
            if isinstance(known, _FailureStreak)
            else _FailureStreak(began=now, clock_offset=clock_offset)
        )
        streak.add(now, clock_offset)
        self._store(endpoint, streak)
        since = await self._health.record_failure(endpoint, now)
        streak.restart_after(since)
        is_observed = now - streak.began >= DISABLE_AFTER_OBSERVED
        if now - since >= DISABLE_AFTER and is_observed and delivery.attempt > 1:
            why = f"disabled after {DISABLE_AFTER.days} days without a success; last error: {outcome.detail}"
            return replace(outcome, kind=OutcomeKind.GIVE_UP, disable_endpoint=True, detail=why)
        pause = pause_after(now - streak.began, streak.count)
        if pause is None or outcome.pause_destination:
            return outcome
        return replace(outcome, pause_destination=True, retry_after=pause.total_seconds())

    def _store(self, endpoint: str, known: _FailureStreak | datetime) -> None:
        self._called[endpoint] = known
        self._called.move_to_end(endpoint)
        if len(self._called) > _MAX_ENDPOINTS:
            self._called.popitem(last=False)
