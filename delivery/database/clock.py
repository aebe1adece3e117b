"""What time it is: one clock for all replicas, that of the database they share.

Rows say when something is due, expires or was last touched, and any replica judges them. So nobody asks the
machine: a process that shares its database learns what time it is there, again and again, and carries it on
by a clock that never jumps. A process with a database of its own has the machine's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import func, select

from delivery.database.engine import Database, DatabaseUnavailable

SYNC_SECONDS = 30.0
"""Seconds between looks at the database's clock."""

TOLERANCE_SECONDS = 0.2
"""Seconds that a look may differ and change nothing: a slow answer is no skew."""

log = structlog.get_logger(__name__)


def _ticks() -> float:
    """Return seconds that count on while a process is stopped or a machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """A clock that is set, and runs on by `ticks`; until it is set it is the machine's."""

    def __init__(self, ticks: Callable[[], float] = _ticks) -> None:
        self._ticks = ticks
        self._set_to: datetime | None = None
        self._set_at = 0.0

    def now(self) -> datetime:
        """Return what time it is."""
        if self._set_to is None:
            return datetime.now(UTC)
        return self._set_to + timedelta(seconds=self._ticks() - self._set_at)

    def from_machine_time(self, moment: datetime) -> datetime:
        """Return what time it was here when the machine's clock said `moment`, as files are dated."""
        return moment if self._set_to is None else moment + (self.now() - datetime.now(UTC))

    async def sync(self, database: Database) -> None:
        """Set it by a database's clock, unless it is right already; raises Unavailable."""
        async with database.read() as connection:
            before = self._ticks()
            told = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
            after = self._ticks()
        self.set(told.astimezone(UTC), tick=(before + after) / 2)

    def set(self, moment: datetime, *, tick: float) -> None:
        """Go by what it was told at a tick, unless that is near enough already."""
        off = (moment - self.now()).total_seconds() + self._ticks() - tick
        if self._set_to is None or abs(off) > TOLERANCE_SECONDS:
            log.info("clock.set", by_seconds=round(off, 3))
            self._set_to, self._set_at = moment, tick


_shared = Clock()


def utc_now() -> datetime:
    """Return what time it is for all replicas; whatever rows hold or are compared with comes from here."""
    return _shared.now()


def from_machine_time(moment: datetime) -> datetime:
    """Return what time it was for all replicas when this machine's clock said `moment`."""
    return _shared.from_machine_time(moment)


@asynccontextmanager
async def synchronized_with(database: Database) -> AsyncIterator[None]:
    """Go by the clock of a database that others share as well; raises Unavailable."""
    await _shared.sync(database)
    stop = asyncio.Event()
    following = asyncio.create_task(_sync_regularly(database, stop))
    try:
        yield
    finally:
        stop.set()
        await following


async def _sync_regularly(database: Database, stop: asyncio.Event) -> None:
    stopping = asyncio.create_task(stop.wait())
    while not (await asyncio.wait({stopping}, timeout=SYNC_SECONDS))[0]:
        try:
            await _shared.sync(database)
        except DatabaseUnavailable as error:
            log.debug("clock.database_unavailable", error=str(error))
