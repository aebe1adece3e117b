"""Epochs: which incarnation of the stream a position belongs to.

A position means something only as long as the broker never gives the same number to another event. It may do
so when its stream was made anew, restored, or lost its unsynced end in a power failure. So the stream's
creation is part of the epoch, the highest position seen is remembered in SQL, and a stream that comes back
shorter than that begins a new epoch.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from delivery.broker.connection import Link
from delivery.broker.jetstream_events import JetStream
from delivery.broker.stream_config import EVENTS, Layout, Origin, ensure, origin
from delivery.database.engine import Connection, Database, Unavailable
from delivery.database.tables import epochs
from delivery.errors import DeliveryError, Refused

_log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
ALARM = 0.8
"""How full the event log may be before it is said."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is remembered of a stream."""

    created: str
    high_water: int
    bumps: int


async def known(connection: Connection, stream: str = EVENTS) -> Known | None:
    """Return what is remembered of a stream, None before its first time."""
    row = (await connection.execute(select(epochs).where(epochs.c.stream == stream))).one_or_none()
    if row is None:
        return None
    return Known(created=row.created, high_water=row.high_water, bumps=row.bumps)


async def settle(
    connection: Connection,
    before: Known | None,
    found: Origin,
    *,
    stream: str = EVENTS,
    may_have_lost: bool = False,
) -> str:
    """Compare a stream with what was remembered before it was looked at, remember it, return its epoch.

    `before` must have been read earlier than `found`: another replica may remember a later position since.
    `may_have_lost`: the machine went down while the broker ran, so that its last second may be gone.
    """
    now = await known(connection, stream)
    if now is None:
        first = {"created": found.created, "high_water": found.last_seq, "bumps": 0}
        await connection.execute(insert(epochs).values(stream=stream, **first))
        return named(found.created, 0)
    wanted = _judged(before or now, now, found, may_have_lost=may_have_lost)
    if wanted != now:
        await connection.execute(update(epochs).where(epochs.c.stream == stream).values(**asdict(wanted)))
    return named(wanted.created, wanted.bumps)


def _judged(before: Known, now: Known, found: Origin, *, may_have_lost: bool) -> Known:
    """Return what is to be remembered: a new incarnation, a new epoch of it, or mere progress."""
    if now.created != found.created:
        return Known(created=found.created, high_water=found.last_seq, bumps=0)
    fell_back = before.created == found.created and found.last_seq < before.high_water
    if (fell_back or may_have_lost) and before.bumps == now.bumps:  # else another replica noticed it too
        _log.warning("the stream may have lost its end; positions start a new epoch")
        return replace(now, high_water=found.last_seq, bumps=now.bumps + 1)
    return replace(now, high_water=max(now.high_water, found.last_seq))


def named(created: str, bumps: int) -> str:
    """Return an epoch's short name; it never holds the dash that ends it in a cursor."""
    number = int((datetime.fromisoformat(created) - _BEGINNING).total_seconds() * 1_000_000)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"{digits}_{bumps}" if bumps else digits


async def begin(database: Database, link: Link, layout: Layout, *, may_have_lost: bool = False) -> str:
    """Make the streams as they should be and return the epoch; raises Refused, Unreachable, Unavailable."""
    await ensure(link, layout)
    async with database.read() as connection:
        before = await known(connection)
    found = await origin(link)
    try:
        async with database.begin() as connection:
            return await settle(connection, before, found, may_have_lost=may_have_lost)
    except IntegrityError:  # another replica's first start
        async with database.begin() as connection:
            return await settle(connection, before, found, may_have_lost=may_have_lost)


async def watch(
    database: Database, link: Link, layout: Layout, stream: JetStream, *, stop: asyncio.Event
) -> None:
    """Remember the stream's progress every few seconds, and begin a new epoch when it fell back."""
    look = asyncio.Event()
    unwatch = link.watch_reconnects(look.set)
    ending = asyncio.create_task(_relay(stop, look))
    try:
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await look.wait()
            look.clear()
            await _look(database, link, layout, stream)
    finally:
        unwatch()
        ending.cancel()


async def _relay(stop: asyncio.Event, look: asyncio.Event) -> None:
    await stop.wait()
    look.set()


async def _look(database: Database, link: Link, layout: Layout, stream: JetStream) -> None:
    if not link.is_up:
        return
    try:
        async with database.read() as connection:
            before = await known(connection)
        found = await _found(link, layout)
        _warn_of_fill(stream.fill, found.fill)
        stream.fill = found.fill
        if before and (before.created, before.high_water) == (found.created, found.last_seq):
            epoch = named(before.created, before.bumps)
        else:
            async with database.begin() as connection:
                epoch = await settle(connection, before, found)
    except (DeliveryError, Unavailable) as error:
        _log.debug("cannot look at the epoch: %s", error)
        return
    stream.begin_epoch(epoch)


def _warn_of_fill(before: float, now: float) -> None:
    if before < ALARM <= now:
        _log.warning(
            "the event log is %.0f %% full: soon the oldest events of everybody make room", now * 100
        )


async def _found(link: Link, layout: Layout) -> Origin:
    try:
        return await origin(link)
    except Refused:  # deleted while we ran: SQL has the state, so go on with an empty one
        return await ensure(link, layout)
