"""Compute when a failed attempt is retried, from delays, a jitter and the receiver's Retry-After (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from random import SystemRandom

RETRY_AFTER_CAP = 3600.0
"""The longest Retry-After that is honored, in seconds."""

RandomSource = Callable[[], float]
"""A source of numbers in [0, 1); injected, so that a test controls the jitter."""

system_random: RandomSource = SystemRandom().random
"""The random source outside tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySchedule:
    """Delays in seconds after the first, second, … failed attempt, each varied by ± `jitter` of itself.

    With `max_duration`, the last delay repeats until that many seconds after the first attempt; without it,
    the delivery is dead when the delays are used up. A Retry-After replaces the delay if `honors_retry_after`
    is set; otherwise it can only lengthen the delay. `park_after`: when the next attempt would be later than
    that many seconds after the first one, the delivery is parked, so that those behind it are sent;
    `park_unreached_after` is the same for failures to reach the receiver at all.
    """

    delays: tuple[float, ...]
    max_duration: float | None = None
    jitter: float = 0.2
    honors_retry_after: bool = False
    operator_delay: float = 900.0
    """The shortest delay while only an operator can solve the problem."""
    park_after: float | None = None
    park_unreached_after: float | None = None

    def __post_init__(self) -> None:
        if not self.delays or any(not math.isfinite(step) or step < 0 for step in self.delays):
            raise ValueError("`delays` needs at least one delay; each must be finite and not negative")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"`jitter` must be at least 0 and below 1, not {self.jitter}")

    def delay_after(self, attempt: int) -> float | None:
        """Return the delay after failed attempt number `attempt` (from 1), or None when there is none."""
        if attempt <= len(self.delays):
            return self.delays[max(attempt, 1) - 1]
        return None if self.max_duration is None else self.delays[-1]


WEBHOOK = RetrySchedule(delays=(5, 300, 1800, 7200, 18_000, 36_000, 36_000))
"""Eight attempts over about 28 hours; a Retry-After can only lengthen a delay."""

CHAT = RetrySchedule(
    delays=(1, 2, 5, 15, 30, 60, 60, 300, 600, 1200, 1800),
    max_duration=86_400,
    honors_retry_after=True,
    park_after=240,
    park_unreached_after=3600,
)
"""Eight attempts in about three minutes, then growing delays for a day.

A platform's Retry-After replaces the delay. Three minutes are longer than a platform's usual disturbance, in
which order should be kept, and about as long as a person waits before asking again. A platform that cannot be
reached fails every delivery alike, so order is kept for an hour.
"""


def next_attempt_at(
    schedule: RetrySchedule,
    *,
    attempt: int,
    now: datetime,
    since: datetime | None = None,
    retry_after: float | None = None,
    needs_operator: bool = False,
    random_source: RandomSource = system_random,
) -> datetime | None:
    """Return when to retry after failed attempt number `attempt`, or None when it was the last.

    `since` is the moment of the first attempt, from which `max_duration` counts. The first failure is always
    followed by a second attempt.
    """
    step = schedule.delay_after(attempt)
    if step is None:
        return None
    delay = step * (1 + schedule.jitter * (2 * random_source() - 1))
    if retry_after is not None:
        requested = min(max(retry_after, 0.0), RETRY_AFTER_CAP)
        delay = requested if schedule.honors_retry_after else max(delay, requested)
    moment = now + timedelta(seconds=max(delay, schedule.operator_delay) if needs_operator else delay)
    if schedule.max_duration is not None and since is not None and attempt > 1:
        return moment if moment <= since + timedelta(seconds=schedule.max_duration) else None
    return moment


def parse_retry_after(value: str | None, *, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, from 0 to RETRY_AFTER_CAP; None when it is not valid.

    RFC 9110 section 10.2.3: delay-seconds or an HTTP-date. Fractions and exponents are accepted too.
    """
    if value is None or not value.strip() or len(value) > 64:  # noqa: PLR2004 - no sensible value is longer
        return None
    seconds = _seconds(value.strip(), now)
    return None if seconds is None or math.isnan(seconds) else min(max(seconds, 0.0), RETRY_AFTER_CAP)


def _seconds(value: str, now: datetime) -> float | None:
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()
