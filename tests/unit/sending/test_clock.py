"""G14: replicas go by one clock, which runs on by itself and is corrected now and then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delivery.database.clock import TOLERANCE_SECONDS, Clock

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_a_clock_that_was_set_continues() -> None:
    """Between two looks it counts ticks; the machine's clock may jump as it likes."""
    ticks = [100.0]
    clock = Clock(lambda: ticks[0])
    clock.set(NOON, tick=99.0)
    assert clock.now() == NOON + timedelta(seconds=1)
    ticks[0] += 30
    assert clock.now() == NOON + timedelta(seconds=31)


def test_only_what_is_off_is_corrected() -> None:
    """A slow answer does not turn the time back; a clock that was set does."""
    ticks = [0.0]
    clock = Clock(lambda: ticks[0])
    clock.set(NOON, tick=0.0)
    ticks[0] = 10.0
    clock.set(NOON + timedelta(seconds=10 - TOLERANCE_SECONDS / 2), tick=10.0)
    assert clock.now() == NOON + timedelta(seconds=10)
    clock.set(NOON - timedelta(minutes=5), tick=10.0)
    assert clock.now() == NOON - timedelta(minutes=5)


def test_what_files_are_dated_is_translated() -> None:
    """A machine that is ahead dates files in the future; their age stays what it is."""
    clock = Clock()
    written = datetime.now(UTC) - timedelta(seconds=3)
    assert clock.from_machine_time(written) == written
    clock.set(datetime.now(UTC) - timedelta(minutes=10), tick=clock._ticks())
    age = (clock.now() - clock.from_machine_time(written)).total_seconds()
    assert 2.9 < age < 60
