"""The current time: one clock for all replicas, which is that of their shared database.

Rows hold moments at which something is due, expires or was updated, and any replica compares them with the
current time. So a process that shares its database reads the database's time regularly and advances it by a
clock that never jumps. A process with its own database uses the machine's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import func, select

from delivery.background import log_errors
from delivery.database.engine import Database

SYNC_SECONDS = 30.0
"""Seconds between reads of the database's clock."""

TOLERANCE_SECONDS = 0.2
"""The largest difference in seconds that is ignored: a slow response is not clock skew."""

log = structlog.get_logger(__name__)


def _ticks() -> float:
    """Return seconds of a clock that also runs while the process is stopped or the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """A clock that can be set and then advances by `ticks`; until then it returns the machine's time."""

    def __init__(self, ticks: Callable[[], float] = _ticks) -> None:
        self._ticks = ticks
        self._set_to: datetime | None = None
        self._set_at = 0.0

    def now(self) -> datetime:
        """Return the current time."""
        if self._set_to is None:
            return datetime.now(UTC)
        return self._set_to + timedelta(seconds=self._ticks() - self._set_at)

    def from_machine_time(self, moment: datetime) -> datetime:
        """Return the time of this clock at the moment `moment` of the machine's clock, which dates files."""
        return moment if self._set_to is None else moment + (self.now() - datetime.now(UTC))

    async def sync(self, database: Database) -> None:
        """Set the clock to a database's time, unless it is close already; raises DatabaseUnavailable."""
        async with database.read() as connection:
            before = self._ticks()
            database_now = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
            after = self._ticks()
        self.set(database_now.astimezone(UTC), tick=(before + after) / 2)

    def set(self, moment: datetime, *, tick: float) -> None:
        """Set the clock to `moment` as of `tick`, unless it differs by at most TOLERANCE_SECONDS."""
        off = (moment - self.now()).total_seconds() + self._ticks() - tick
        if self._set_to is None or abs(off) > TOLERANCE_SECONDS:
            log.info("clock.set", by_seconds=round(off, 3))
            self._set_to, self._set_at = moment, tick


class ClockSteps:
    """Measures by how much a clock was set back, against `ticks`, which never jump."""

    def __init__(self, now: Callable[[], datetime], ticks: Callable[[], float] = _ticks) -> None:
        self._now = now
        self._ticks = ticks
        self._handled = self._seen = self._find_origin()

    def measure(self) -> timedelta:
        """Return by how much the clock was set back since what was handled; negative: it was set forward."""
        self._seen = self._find_origin()
        return self._handled - self._seen

    def mark_handled(self) -> None:
        """Measure from now on against the clock as it was measured last."""
        self._handled = self._seen

    def _find_origin(self) -> datetime:
        """Return the clock's time at tick 0."""
        return self._now() - timedelta(seconds=self._ticks())


_shared = Clock()


def utc_now() -> datetime:
    """Return the current time for all replicas; rows hold this time and are compared with it."""
    return _shared.now()


def from_machine_time(moment: datetime) -> datetime:
    """Return the replicas' time at the moment `moment` of this machine's clock."""
    return _shared.from_machine_time(moment)


@asynccontextmanager
async def synchronized_with(database: Database) -> AsyncIterator[None]:
    """Keep the clock synchronized with a shared database; raises DatabaseUnavailable at the start."""
    await _shared.sync(database)
    stop = asyncio.Event()
    syncing = asyncio.create_task(_sync_regularly(database, stop))
    try:
        yield
    finally:
        stop.set()
        await syncing


async def _sync_regularly(database: Database, stop: asyncio.Event) -> None:
    stopping = asyncio.create_task(stop.wait())
    while not (await asyncio.wait({stopping}, timeout=SYNC_SECONDS))[0]:
        with log_errors("clock"):
            await _shared.sync(database)
