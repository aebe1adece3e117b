"""Times as people write them in `/remind` and `/schedule`: `in 20m`, `tomorrow 9:00`, `every monday 8:30`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from gateway.schedules.recurrence import (
    CRON_FIELDS,
    HORIZON,
    RANGE,
    InvalidRecurrence,
    Recurrence,
    as_utc,
    parse_recurrence,
)

FORMS = (
    "`in 20m`, `at 18:00`, `tomorrow 9:00`, `2030-01-31 9:00`, `every 2h`, `every day 9:00`, "
    "`every monday 9:00` or `cron 0 9 * * 1-5`"
)
"""The forms that `parse_when` accepts, for help texts."""

_UNITS = {"m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}
_UNITS |= {"w": 7 * _UNITS["d"], "week": 7 * _UNITS["d"]}
_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MAX_DIGITS = 6


def parse_when(words: Sequence[str], *, now: datetime, timezone: str) -> tuple[Recurrence, str]:
    """Return when something is due, and the text after the time; raises InvalidRecurrence."""
    if not words:
        raise InvalidRecurrence("when", f"give a time: {FORMS}")
    first, rest = words[0].lower(), list(words[1:])
    today = now.astimezone(ZoneInfo(timezone)).date()
    if first == "in":
        length, rest = _take_duration(rest)
        if length > HORIZON:
            raise InvalidRecurrence("when", RANGE)
        return parse_recurrence(now=now, at=now + length, timezone=timezone), " ".join(rest)
    if first == "every":
        return _parse_every(rest, now=now, timezone=timezone)
    if first == "cron":
        expression, rest = " ".join(rest[:CRON_FIELDS]), rest[CRON_FIELDS:]
        return parse_recurrence(now=now, cron=expression, timezone=timezone), " ".join(rest)
    if first in {"at", "today"}:
        clock, rest = _take_clock(rest)
        at = _moment(today, clock, timezone)
        at = _moment(today + timedelta(days=1), clock, timezone) if first == "at" and at <= now else at
    else:
        day = today + timedelta(days=1) if first == "tomorrow" else _parse_date(words[0])
        clock, rest = _take_clock(rest)
        at = _moment(day, clock, timezone)
    return parse_recurrence(now=now, at=at, timezone=timezone), " ".join(rest)


def _parse_every(words: list[str], *, now: datetime, timezone: str) -> tuple[Recurrence, str]:
    """Parse what follows `every`: a duration, or a day and a time of the day."""
    first = words[0].lower() if words else ""
    days = "*" if first == "day" else "1-5" if first == "weekday" else None
    if first.rstrip("s") in _WEEKDAYS:
        days = str(_WEEKDAYS.index(first.rstrip("s")))
    if days is None:
        length, rest = _take_duration(words)
        every = f"PT{int(length.total_seconds())}S"
        return parse_recurrence(now=now, every=every, timezone=timezone), " ".join(rest)
    clock, rest = _take_clock(words[1:])
    cron = f"{clock.minute} {clock.hour} * * {days}"
    return parse_recurrence(now=now, cron=cron, timezone=timezone), " ".join(rest)


def _take_duration(words: list[str]) -> tuple[timedelta, list[str]]:
    """Take a duration such as `20m` or `2 hours` from the beginning of the words."""
    word = words[0].lower() if words else ""
    digits = word[: len(word) - len(word.lstrip("0123456789"))]
    unit, rest = word[len(digits) :], words[1:]
    if digits and not unit and rest:
        unit, rest = rest[0].lower(), rest[1:]
    seconds = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    if not digits or len(digits) > _MAX_DIGITS or seconds is None:
        raise InvalidRecurrence("when", f"give a duration such as 20m, 2h, 3d or 1w, not {word[:40]!r}")
    return timedelta(seconds=int(digits) * seconds), rest


def _take_clock(words: list[str]) -> tuple[time, list[str]]:
    """Take a time of the day such as `9:00` from the beginning of the words, with or without `at`."""
    if words and words[0].lower() == "at":
        words = words[1:]
    word = words[0] if words else ""
    try:
        return time.fromisoformat(word.rjust(5, "0")).replace(tzinfo=None), words[1:]
    except ValueError:
        raise InvalidRecurrence("when", f"give a time such as 9:00 or 18:30, not {word[:40]!r}") from None


def _parse_date(word: str) -> date:
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise InvalidRecurrence("when", f"{word[:40]!r} is no time; write {FORMS}") from None


def _moment(day: date, clock: time, timezone: str) -> datetime:
    return as_utc(datetime.combine(day, clock, tzinfo=ZoneInfo(timezone)), field="when")
