"""When a schedule is due: once, at intervals, or by a cron expression in a time zone.

Cron expressions have five fields: a time that daylight saving skips is due right after the gap, and a time
that occurs twice is due once, unless the expression is due every hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import TypeAdapter, ValidationError

from gateway.schedules.cron_times import next_cron_time

MIN_INTERVAL = timedelta(seconds=60)
MAX_INTERVAL = timedelta(days=3660)
MAX_CRON = 100
"""Characters of a cron expression."""

CRON_FIELDS = 5
HORIZON = timedelta(days=3660)
"""A schedule must be due for the first time within this period."""

RANGE = "must be a time within the next ten years"

_DURATION = TypeAdapter(timedelta)
_NEVER = "the time has no match in the next ten years"


class InvalidRecurrence(ValueError):
    """A field of a recurrence is invalid: its name, and what is allowed."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """When a schedule is due: exactly one of `at`, `every` and `cron`, which is read in `timezone`."""

    at: datetime | None = None
    every: timedelta | None = None
    cron: str | None = None
    timezone: str = "UTC"

    def first(self, now: datetime) -> datetime:
        """Return when the schedule is due for the first time; raises InvalidRecurrence if it never is."""
        due = self.at or self.next_after(now, since=now)
        if due is None or due > now + HORIZON:
            raise InvalidRecurrence("at" if self.at else "cron", _NEVER)
        return due

    def next_after(self, moment: datetime, *, since: datetime) -> datetime | None:
        """Return the first time after `moment`, or None; `since` is an earlier time of an interval.

        Raises InvalidRecurrence if this machine no longer knows the time zone.
        """
        if self.every is not None:
            return since + self.every * max((moment - since) // self.every + 1, 1)
        if self.cron is not None:
            return next_cron_time(self.cron, _zone(self.timezone), moment)
        return None

    def earliest_after(self, moment: datetime, *, due: datetime) -> datetime | None:
        """Return the first time after `moment`, of the grid that has the time `due`; None for a single time.

        Unlike `next_after` it may be before `due`. Raises InvalidRecurrence as it does.
        """
        if self.every is not None:
            return due - self.every * max((due - moment - timedelta.resolution) // self.every, 0)
        return self.next_after(moment, since=moment)


def parse_recurrence(
    *,
    now: datetime,
    at: datetime | None = None,
    every: str | None = None,
    cron: str | None = None,
    timezone: str = "UTC",
) -> Recurrence:
    """Return a valid recurrence: exactly one of `at` (aware), `every` (ISO 8601) and `cron`.

    Raises InvalidRecurrence.
    """
    given = [name for name, value in (("at", at), ("every", every), ("cron", cron)) if value is not None]
    if len(given) != 1:
        found = f", not {' and '.join(given)}" if given else ""
        raise InvalidRecurrence(
            given[-1] if given else "at", f"give exactly one of at, every and cron{found}"
        )
    recurrence = Recurrence(
        at=_parse_at(at, now) if at is not None else None,
        every=parse_interval(every) if every is not None else None,
        cron=_parse_cron(cron, now) if cron is not None else None,
        timezone=_zone(timezone).key,
    )
    recurrence.first(now)
    return recurrence


def parse_interval(text: str) -> timedelta:
    """Return an ISO 8601 duration such as PT15M or P1D, of whole seconds; raises InvalidRecurrence.

    Years and months have no length of their own, so no duration may have them.
    """
    detail = f"must be an ISO 8601 duration such as PT15M, PT2H or P1D, not {text[:40]!r}"
    if not text.startswith("P") or len(text) > MAX_CRON:
        raise InvalidRecurrence("every", detail)
    try:
        interval = _DURATION.validate_python(text)
    except ValidationError:
        raise InvalidRecurrence("every", detail) from None
    days, _, _clock = text.partition("T")
    if "Y" in days or "M" in days:
        remedy = "write days, such as P30D, or cron, such as 0 9 1 * *"
        raise InvalidRecurrence("every", f"{text[:40]!r} has no fixed length: {remedy}")
    if interval.microseconds:
        raise InvalidRecurrence("every", f"must be whole seconds, not {text[:40]!r}")
    if not MIN_INTERVAL <= interval <= MAX_INTERVAL:
        raise InvalidRecurrence("every", "must be from 60 seconds (PT60S) to ten years (P3660D)")
    return interval


def _parse_at(at: datetime, now: datetime) -> datetime:
    if at.tzinfo is None:
        raise InvalidRecurrence("at", "must have an offset from UTC, as in 2030-01-31T09:00:00+01:00")
    moment = as_utc(at, field="at")
    if moment <= now:
        raise InvalidRecurrence("at", f"must be in the future; it is {now:%Y-%m-%dT%H:%M:%SZ} now")
    return moment


def as_utc(moment: datetime, *, field: str) -> datetime:
    """Return a moment in UTC; raises InvalidRecurrence for one that UTC has no year for."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidRecurrence(field, RANGE) from None


def _parse_cron(cron: str, now: datetime) -> str:
    fields = cron.split()
    if len(fields) != CRON_FIELDS or len(cron) > MAX_CRON:
        raise InvalidRecurrence(
            "cron", "must have five fields: minute, hour, day of month, month, day of week"
        )
    try:
        CronSim(cron, now)
    except CronSimError as error:
        raise InvalidRecurrence("cron", f"{str(error).lower()} in {cron!r}") from None
    return " ".join(fields)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRecurrence(
            "timezone", f"there is no time zone {name[:60]!r}; use a name of IANA, such as Europe/Berlin"
        ) from None
