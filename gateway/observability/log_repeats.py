"""Limit identical log lines: one resource that is used up fails everything that needs it, again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

BURST = 20
"""Identical warnings or errors that are logged in one interval."""

INTERVAL_SECONDS = 10.0
_MAX_KINDS = 1000


@dataclass(slots=True)
class _Interval:
    """How often a line was logged since a moment."""

    began: float
    count: int = 0


class RepeatFilter(logging.Filter):
    """Drops further identical lines of an interval; the next interval's first line has their number.

    Lines are identical if logger, level, event and error are; ids may differ.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._intervals: dict[tuple[object, ...], _Interval] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a line."""
        if record.levelno < logging.WARNING:
            return True
        now, key = self._clock(), _kind_of(record)
        current = self._intervals.get(key)
        if current is None or now - current.began >= INTERVAL_SECONDS:
            self._begin(key, now)
            if current is not None and current.count > BURST:
                _add_count(record, current.count - BURST)
            return True
        current.count += 1
        return current.count <= BURST

    def _begin(self, key: tuple[object, ...], now: float) -> None:
        if len(self._intervals) >= _MAX_KINDS:
            self._intervals.clear()
        self._intervals[key] = _Interval(began=now, count=1)


def _kind_of(record: logging.LogRecord) -> tuple[object, ...]:
    exception = record.exc_info[1] if record.exc_info else None
    failure = (type(exception), str(exception)) if exception is not None else None
    if isinstance(record.msg, dict):
        error = record.msg.get("error")
        inner = record.msg.get("exc_info")
        shown = (type(inner), str(inner)) if isinstance(inner, BaseException) else None
        return record.name, record.levelno, record.msg.get("event"), str(error), shown or failure
    return record.name, record.levelno, str(record.msg), str(record.args), failure


def _add_count(record: logging.LogRecord, dropped: int) -> None:
    if isinstance(record.msg, dict):
        record.msg = {**record.msg, "identical_lines_dropped": dropped}
    else:
        record.msg = f"{record.getMessage()} ({dropped} identical lines dropped)"
        record.args = ()
