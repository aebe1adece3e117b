"""When a failed attempt is repeated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.deliveries.retry_schedule import (
    CHAT,
    WEBHOOK,
    RetrySchedule,
    next_attempt_at,
    parse_retry_after,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SHARES = st.floats(0, 1, exclude_max=True)


def delay(schedule: RetrySchedule, attempt: int, **more: object) -> float | None:
    """Return the seconds to the next attempt."""
    moment = next_attempt_at(schedule, attempt=attempt, now=NOW, **more)  # type: ignore[arg-type]
    return None if moment is None else (moment - NOW).total_seconds()


def test_webhooks_are_tried_eight_times() -> None:
    """The delays are 5 s, 5 min, 30 min, 2 h, 5 h, 10 h and 10 h; then it is over."""
    delays = [delay(WEBHOOK, attempt, random_source=lambda: 0.5) for attempt in range(1, 9)]
    assert delays == [5, 300, 1800, 7200, 18_000, 36_000, 36_000, None]


@given(attempt=st.integers(1, 7), share=SHARES)
def test_jitter_stays_within_a_fifth(attempt: int, share: float) -> None:
    """No delay is more than 20 % off, whatever the random source returns."""
    step = WEBHOOK.delays[attempt - 1]
    found = delay(WEBHOOK, attempt, random_source=lambda: share)
    assert found is not None
    assert step * 0.8 - 1e-3 <= found <= step * 1.2 + 1e-3


def test_chats_are_tried_for_a_day() -> None:
    """Chat attempts go on with growing delays until a day after the first, then end."""
    moment, attempts = NOW, 1
    while True:
        following = next_attempt_at(CHAT, attempt=attempts, now=moment, since=NOW)
        if following is None:
            break
        assert following > moment
        moment, attempts = following, attempts + 1
    assert timedelta(hours=23, minutes=20) < moment - NOW <= timedelta(hours=24)
    assert 45 < attempts < 75


def test_the_first_failure_is_followed_by_a_second_attempt() -> None:
    """A delivery that waited more than a day for its first attempt still gets a second."""
    assert delay(CHAT, 1, since=NOW - timedelta(days=3)) is not None
    assert delay(CHAT, 2, since=NOW - timedelta(days=3)) is None


def test_a_platform_s_own_delay_replaces_a_chat_s() -> None:
    """A chat with a Retry-After of 3 s waits 3 s, not the step of its attempt."""
    assert delay(CHAT, 6, retry_after=3.0, since=NOW) == 3.0


def test_a_receiver_can_only_lengthen_a_webhook_s_delay() -> None:
    """Retry-After is a floor under a webhook's delay, so that a short one does not use up the schedule."""
    assert delay(WEBHOOK, 1, retry_after=60.0, random_source=lambda: 0.5) == 60.0
    assert delay(WEBHOOK, 3, retry_after=5.0, random_source=lambda: 0.5) == 1800.0


@given(asked=st.floats(allow_nan=False), attempt=st.integers(1, 7))
def test_no_retry_after_delays_a_retry_for_ever(asked: float, attempt: int) -> None:
    """However long a far end asks for, it is an hour at most."""
    found = delay(CHAT, attempt, retry_after=asked)
    assert found is not None
    assert 0 <= found <= 3600


def test_what_only_an_operator_can_mend_is_tried_rarely() -> None:
    """While the token is wrong, a quarter of an hour passes between attempts."""
    assert delay(CHAT, 1, needs_operator=True, random_source=lambda: 0.5) == 900


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5", 5.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("1e9", 3600.0),
        ("1000000000", 3600.0),
        ("inf", 3600.0),
        ("-3", 0.0),
        (format_datetime(NOW + timedelta(seconds=30), usegmt=True), 30.0),
        (format_datetime(NOW - timedelta(days=1), usegmt=True), 0.0),
        (format_datetime(NOW + timedelta(days=9), usegmt=True), 3600.0),
        ("Sun Mar  1 12:00:30 2026", 30.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("9" * 5000, None),
        ("Sun, 99 Foo 2026 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    """Both forms of the header are read, capped at an hour, and garbage is no delay."""
    assert parse_retry_after(value, now=NOW) == seconds


@given(value=st.text(max_size=80))
def test_no_retry_after_is_an_accident(value: str) -> None:
    """Any text is read as a delay within bounds or as none."""
    found = parse_retry_after(value, now=NOW)
    assert found is None or 0 <= found <= 3600


@pytest.mark.parametrize("steps", [(), (-1.0,), (float("nan"),), (float("inf"),)])
def test_a_senseless_schedule_is_refused(steps: tuple[float, ...]) -> None:
    """A schedule without delays, or with impossible ones, cannot be made."""
    with pytest.raises(ValueError, match="delay"):
        RetrySchedule(delays=steps)
