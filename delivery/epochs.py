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
from datetime import UTC, datetime

from sqlalchemy import insert, select, update

from delivery.database import Connection, Database, Unavailable
from delivery.errors import DeliveryError, Refused
from delivery.streams.connection import Link
from delivery.streams.jetstream import JetStream
from delivery.streams.layout import EVENTS, Layout, Origin, ensure, origin
from delivery.tables import epochs

_log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


async def settle(
    connection: Connection, found: Origin, *, stream: str = EVENTS, may_have_lost: bool = False
) -> str:
    """Compare a stream with what is remembered of it, remember it as it is, and return its epoch.

    `may_have_lost`: the machine went down while the broker ran, so that its last second may be gone.
    """
    known = (await connection.execute(select(epochs).where(epochs.c.stream == stream))).one_or_none()
    if known is None:
        await connection.execute(
            insert(epochs).values(stream=stream, created=found.created, high_water=found.last_seq, bumps=0)
        )
        return named(found.created, 0)
    same = known.created == found.created
    bumps = known.bumps if same else 0
    if same and (may_have_lost or found.last_seq < known.high_water):
        bumps += 1
        _log.warning("the stream %s may have lost its end; positions start a new epoch", stream)
    if (found.created, found.last_seq, bumps) != (known.created, known.high_water, known.bumps):
        await connection.execute(
            update(epochs)
            .where(epochs.c.stream == stream)
            .values(created=found.created, high_water=found.last_seq, bumps=bumps)
        )
    return named(found.created, bumps)


def named(created: str, bumps: int) -> str:
    """Return an epoch's short name; it never holds the dash that ends it in a cursor."""
    number = int((datetime.fromisoformat(created) - _BEGINNING).total_seconds() * 1_000_000)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"{digits}_{bumps}" if bumps else digits


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
        found = await _found(link, layout)
        async with database.begin() as connection:
            epoch = await settle(connection, found)
    except (DeliveryError, Unavailable) as error:
        _log.debug("cannot look at the epoch: %s", error)
        return
    stream.begin_epoch(epoch)


async def _found(link: Link, layout: Layout) -> Origin:
    try:
        return await origin(link)
    except Refused:  # deleted while we ran: SQL has the state, so go on with an empty one
        return await ensure(link, layout)
