"""The times of a cron expression in a time zone whose clocks are changed.

The library's own treatment moves the clock by whole hours, and so passes over times of zones that change it
by half an hour. It also takes `*/2` hours for an expression that is due every hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

_HOURS = frozenset(range(24))
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


def next_cron_time(cron: str, zone: ZoneInfo, moment: datetime) -> datetime | None:
    """Return the first time after `moment` in UTC, or None if there is none in the library's range."""
    found: datetime | None = None
    times = CronSim(cron, _naive(moment, zone) - _repeated_soon(moment, zone))
    is_hourly = times.hours >= _HOURS
    for local in times:
        if found is not None and _first_instant(local, zone) >= found:
            break
        later = [one for one in _instants(local, zone, is_hourly=is_hourly) if one > moment]
        found = min([*later, *([found] if found else [])], default=None)
    return found


def _naive(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _repeated_soon(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Return by how much clocks are set back within a day: an earlier local time may come again."""
    back = _naive(moment, zone) + _DAY - _naive(moment + _DAY, zone)
    return max(back, timedelta(0))


def _instants(local: datetime, zone: ZoneInfo, *, is_hourly: bool) -> Iterator[datetime]:
    """Yield when a local time is due.

    A time that does not exist is due at the end of the gap, and one that occurs twice is due once. What is
    due every hour needs neither: it is due whenever clocks show the time.
    """
    first = _first_instant(local, zone)
    second = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if first > second:
        if not is_hourly:
            yield _end_of_gap(second, first, zone)
        return
    yield first
    if is_hourly and second > first:
        yield second


def _first_instant(local: datetime, zone: ZoneInfo) -> datetime:
    return local.replace(tzinfo=zone).astimezone(UTC)


def _end_of_gap(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return when clocks are set forward; they are once between the two instants."""
    offset = after.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after.replace(microsecond=0)
