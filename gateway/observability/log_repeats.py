"""Limit identical log lines: one resource that is used up fails everything that needs it, again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

BURST = 20
"""Identical warnings or errors that are logged in one interval."""

INTERVAL_SECONDS = 10.0

LONGEST_INTERVAL_SECONDS = 600.0
"""The longest interval of a line that is repeated with the same ids."""

LATER = 5
"""Lines of one kind, with different ids, that are logged in each minute after the first ten seconds."""

LATER_SECONDS = 60.0

EVENT_BURST = 60
"""Lines of one event, with different errors, that are logged in the first ten seconds."""

ENDED_SECONDS = 60.0
"""Seconds without a line after which it is a new one."""

_MAX_KINDS = 1000
_VARYING = ("timestamp", "exc_info", "identical_lines_dropped")


@dataclass(slots=True)
class _Interval:
    """How often a line was logged since a moment, and until when it is counted."""

    began: float
    latest: float
    allowed: int
    """The lines of the interval that are logged."""
    length: float = INTERVAL_SECONDS
    count: int = 1


class _Intervals:
    """The present interval of each key. Those of a key that goes on are twice as long each time.

    The first interval has `burst` lines, each later one `later`. The longest has `longest` seconds.
    """

    def __init__(
        self, *, burst: int = BURST, later: int = 1, longest: float = LONGEST_INTERVAL_SECONDS
    ) -> None:
        self._burst = burst
        self._later = later
        self._longest = longest
        self._by_key: dict[tuple[object, ...], _Interval] = {}

    def count(self, key: tuple[object, ...], now: float) -> int | None:
        """Count a line; return None to drop it, else how many lines before it were dropped."""
        current = self._by_key.get(key)
        if current is None or now - current.latest >= ENDED_SECONDS:
            self._begin(key, now)
            return 0 if current is None else max(0, current.count - current.allowed)
        current.latest = now
        if now - current.began < current.length:
            current.count += 1
            return 0 if current.count <= current.allowed else None
        self._begin(key, now, min(2 * current.length, self._longest))
        return max(0, current.count - current.allowed)

    def _begin(self, key: tuple[object, ...], now: float, length: float = INTERVAL_SECONDS) -> None:
        if len(self._by_key) >= _MAX_KINDS:
            self._by_key.clear()
        allowed = self._burst if length <= INTERVAL_SECONDS else self._later
        self._by_key[key] = _Interval(began=now, latest=now, allowed=allowed, length=length)


class RepeatFilter(logging.Filter):
    """Drops further identical lines of an interval; the next interval's first line has their number.

    Lines are identical if logger, level, event and error are; ids may differ. Of those that go on, few are
    logged in a minute, and fewer of a line whose ids are the same too. A fault that puts an id into the text
    of each error has a limit as well, for all lines of the event and its background task. Warnings of one
    outage are identical whatever waits for its end: the first is logged, and then one in each of its growing
    intervals.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._events = _Intervals(burst=EVENT_BURST, later=2 * LATER, longest=LATER_SECONDS)
        self._kinds = _Intervals(later=LATER, longest=LATER_SECONDS)
        self._lines = _Intervals()
        self._outages = _Intervals(burst=1)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a line."""
        if record.levelno < logging.WARNING:
            return True
        outage = _outage_of(record)
        dropped = self._count(record) if outage is None else self._outages.count((outage,), self._clock())
        if dropped:
            _add_count(record, dropped)
        return dropped is not None

    def _count(self, record: logging.LogRecord) -> int | None:
        now, kind = self._clock(), _kind_of(record)
        same = self._lines.count((*kind, *_ids_of(record)), now)
        alike = None if same is None else self._kinds.count(kind, now)
        other = None if alike is None else self._events.count(_event_of(record), now)
        return None if same is None or alike is None or other is None else same + alike + other


def _outage_of(record: logging.LogRecord) -> str | None:
    """Return the text of the outage that a line reports, or None: its error fails all work alike."""
    error = record.msg.get("error") if isinstance(record.msg, dict) else None
    return str(error) if getattr(error, "is_outage", False) else None


def _ids_of(record: logging.LogRecord) -> tuple[object, ...]:
    fields = record.msg.items() if isinstance(record.msg, dict) else ()
    return tuple((name, str(value)) for name, value in fields if name not in _VARYING)


def _kind_of(record: logging.LogRecord) -> tuple[object, ...]:
    exception = record.exc_info[1] if record.exc_info else None
    failure = (type(exception), str(exception)) if exception is not None else None
    if isinstance(record.msg, dict):
        error = record.msg.get("error")
        inner = record.msg.get("exc_info")
        shown = (type(inner), str(inner)) if isinstance(inner, BaseException) else None
        return record.name, record.levelno, record.msg.get("event"), str(error), shown or failure
    return record.name, record.levelno, str(record.msg), str(record.args), failure


def _event_of(record: logging.LogRecord) -> tuple[object, ...]:
    if isinstance(record.msg, dict):
        return record.name, record.levelno, record.msg.get("event"), record.msg.get("task")
    return record.name, record.levelno, str(record.msg)


def _add_count(record: logging.LogRecord, dropped: int) -> None:
    if isinstance(record.msg, dict):
        record.msg = {**record.msg, "identical_lines_dropped": dropped}
    else:
        record.msg = f"{record.getMessage()} ({dropped} identical lines dropped)"
        record.args = ()
