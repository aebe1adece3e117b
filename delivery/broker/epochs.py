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

from delivery.broker.connection import NatsConnection
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.stream_config import EVENTS, StreamConfig, StreamIdentity, ensure_streams, get_identity
from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.database.tables import epochs
from delivery.errors import BrokerRefused, DeliveryError

_log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
FILL_WARNING = 0.8
"""How full the event log may be before it is said."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCheckpoint:
    """What is remembered of a stream."""

    created: str
    high_water: int
    bumps: int


async def load_checkpoint(connection: Connection, stream: str = EVENTS) -> StreamCheckpoint | None:
    """Return what is remembered of a stream, None before its first time."""
    row = (await connection.execute(select(epochs).where(epochs.c.stream == stream))).one_or_none()
    if row is None:
        return None
    return StreamCheckpoint(created=row.created, high_water=row.high_water, bumps=row.bumps)


async def determine_epoch(
    connection: Connection,
    before: StreamCheckpoint | None,
    identity: StreamIdentity,
    *,
    stream: str = EVENTS,
    may_have_lost: bool = False,
) -> str:
    """Compare a stream with what was remembered before it was looked at, remember it, return its epoch.

    `before` must have been read earlier than `found`: another replica may remember a later position since.
    `may_have_lost`: the machine went down while the broker ran, so that its last second may be gone.
    """
    now = await load_checkpoint(connection, stream)
    if now is None:
        first = {"created": identity.created, "high_water": identity.last_seq, "bumps": 0}
        await connection.execute(insert(epochs).values(stream=stream, **first))
        return format_epoch(identity.created, 0)
    wanted = _next_checkpoint(before or now, now, identity, may_have_lost=may_have_lost)
    if wanted != now:
        await connection.execute(update(epochs).where(epochs.c.stream == stream).values(**asdict(wanted)))
    return format_epoch(wanted.created, wanted.bumps)


def _next_checkpoint(
    before: StreamCheckpoint, now: StreamCheckpoint, identity: StreamIdentity, *, may_have_lost: bool
) -> StreamCheckpoint:
    """Return what is to be remembered: a new incarnation, a new epoch of it, or mere progress."""
    if now.created != identity.created:
        return StreamCheckpoint(created=identity.created, high_water=identity.last_seq, bumps=0)
    fell_back = before.created == identity.created and identity.last_seq < before.high_water
    if (fell_back or may_have_lost) and before.bumps == now.bumps:  # else another replica noticed it too
        _log.warning("the stream may have lost its end; positions start a new epoch")
        return replace(now, high_water=identity.last_seq, bumps=now.bumps + 1)
    return replace(now, high_water=max(now.high_water, identity.last_seq))


def format_epoch(created: str, bumps: int) -> str:
    """Return an epoch's short name; it never holds the dash that ends it in a cursor."""
    number = int((datetime.fromisoformat(created) - _UNIX_EPOCH).total_seconds() * 1_000_000)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"{digits}_{bumps}" if bumps else digits


async def open_streams(
    database: Database, nats: NatsConnection, config: StreamConfig, *, may_have_lost: bool = False
) -> str:
    """Make the streams as they should be and return the epoch; raises Refused, Unreachable, Unavailable."""
    await ensure_streams(nats, config)
    async with database.read() as connection:
        before = await load_checkpoint(connection)
    found = await get_identity(nats)
    try:
        async with database.begin() as connection:
            return await determine_epoch(connection, before, found, may_have_lost=may_have_lost)
    except IntegrityError:  # another replica's first start
        async with database.begin() as connection:
            return await determine_epoch(connection, before, found, may_have_lost=may_have_lost)


async def run(
    database: Database,
    nats: NatsConnection,
    config: StreamConfig,
    stream: JetStreamEvents,
    *,
    stop: asyncio.Event,
) -> None:
    """Remember the stream's progress every few seconds, and begin a new epoch when it fell back."""
    look = asyncio.Event()
    unwatch = nats.on_reconnect(look.set)
    ending = asyncio.create_task(_wake_on_stop(stop, look))
    try:
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await look.wait()
            look.clear()
            await _run_once(database, nats, config, stream)
    finally:
        unwatch()
        ending.cancel()


async def _wake_on_stop(stop: asyncio.Event, wake: asyncio.Event) -> None:
    await stop.wait()
    wake.set()


async def _run_once(
    database: Database, nats: NatsConnection, config: StreamConfig, stream: JetStreamEvents
) -> None:
    if not nats.is_connected:
        return
    try:
        async with database.read() as connection:
            before = await load_checkpoint(connection)
        found = await _read_identity(nats, config)
        _warn_if_full(stream.fill, found.fill)
        stream.fill = found.fill
        if before and (before.created, before.high_water) == (found.created, found.last_seq):
            epoch = format_epoch(before.created, before.bumps)
        else:
            async with database.begin() as connection:
                epoch = await determine_epoch(connection, before, found)
    except (DeliveryError, DatabaseUnavailable) as error:
        _log.debug("cannot look at the epoch: %s", error)
        return
    stream.begin_epoch(epoch)


def _warn_if_full(before: float, now: float) -> None:
    if before < FILL_WARNING <= now:
        _log.warning(
            "the event log is %.0f %% full: soon the oldest events of everybody make room", now * 100
        )


async def _read_identity(nats: NatsConnection, config: StreamConfig) -> StreamIdentity:
    try:
        return await get_identity(nats)
    except BrokerRefused:  # deleted while we ran: SQL has the state, so go on with an empty one
        return await ensure_streams(nats, config)
