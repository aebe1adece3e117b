"""Epochs: the incarnation of the stream that a position belongs to.

A position is valid only while the broker does not give the same number to another event. That can happen when
the stream was created again, restored, or lost its unsynced end in a power failure. So an epoch contains the
stream's creation time, SQL stores the highest position that was seen, and a stream that comes back shorter
than that begins a new epoch.

A stream can also be ahead of SQL, if an older database was restored beside it. Its last events then have
numbers that SQL gives to other events, which would be taken for published. Such a stream is deleted, and
created again. That happens at the start. A running gateway whose database falls back, after a fail-over that
lost commits, ends instead, because what it keeps in memory is of the database before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog
from sqlalchemy.exc import IntegrityError

from delivery.background import log_errors
from delivery.broker.checkpoints import (
    StreamCheckpoint,
    determine_epoch,
    fell_back,
    format_epoch,
    is_another,
    load_checkpoint,
)
from delivery.broker.connection import NatsConnection
from delivery.broker.incomplete_log import LogHoles, mark_complete, mark_incomplete, purge_incomplete
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.message_codec import SEQUENCE
from delivery.broker.stream_config import (
    ALL_LASTING,
    EVENTS,
    WORK,
    StreamConfig,
    StreamIdentity,
    changed_streams,
    delete_stream,
    ensure_streams,
    get_identity,
)
from delivery.database import transaction_locks
from delivery.database.engine import Database
from delivery.database.transaction_locks import TransactionLock
from delivery.errors import BrokerRefused, BrokerUnreachable, DeliveryError
from delivery.events import outbox
from delivery.events.event import Event

_log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0
_FORMER_SUBJECTS = ("ev.*.e", "ev.*.d")
"""Subjects of an earlier version, which no reader looks at. The outbox in SQL has all events on them."""
_PAGE = 256


class DatabaseFellBack(DeliveryError):
    """The database lacks events that were published while this process runs."""

    def __init__(self) -> None:
        super().__init__(
            "the database has lost commits, as after a fail-over to a standby that was behind: the gateway "
            "ends, and its next start continues with what the database has"
        )


async def has_expired(database: Database, nats: NatsConnection, conversation: str) -> bool:
    """Return whether events of a conversation that are not stored have expired, and were not lost.

    Those that were lost are published again, from the first one. Raises BrokerUnreachable, BrokerRefused.
    """
    identity = await get_identity(nats)  # first: what it shows lasts until the positions are reset
    if identity.changed or identity.is_incomplete:
        return False
    async with database.read() as connection:
        known = await load_checkpoint(connection)
        position = await outbox.last_position(connection, conversation)
    is_same = known is None or not (is_another(known, identity) or fell_back(known, identity))
    return is_same and (position is None or position[1] > 0)


async def open_streams(
    database: Database, nats: NatsConnection, config: StreamConfig, *, may_have_lost: bool = False
) -> str:
    """Create or update the streams and return the epoch.

    Events on the subjects of an earlier version are published again, and those that the stream has lost, as
    far as the outbox has them.
    Streams that are ahead of the database are created again. Raises BrokerRefused, BrokerUnreachable,
    DatabaseUnavailable.
    """
    if (await ensure_streams(nats, config)).is_incomplete:
        await _publish_deleted(database, nats)
    await _replace_streams_ahead(database, nats, config)
    has_former = await _has_former_events(nats)
    async with database.read() as connection:
        before = await load_checkpoint(connection)
    identity = await get_identity(nats)

    async def determine() -> str:
        async with database.begin() as connection:
            is_new = may_have_lost or has_former
            epoch = await determine_epoch(connection, before, identity, may_have_lost=is_new)
            if has_former or (before is not None and is_another(before, identity)):
                await outbox.publish_again(connection)
            elif before and fell_back(before, identity, may_have_lost=may_have_lost):
                await outbox.publish_again(connection, after_seq=identity.last_seq)
            return epoch

    try:
        epoch = await determine()
    except IntegrityError:  # the first start of another replica
        epoch = await determine()
    if has_former:  # only now: a start that was interrupted before begins again
        await _delete_former_events(nats)
    return epoch


async def _replace_streams_ahead(database: Database, nats: NatsConnection, config: StreamConfig) -> None:
    """Create the streams again if they are ahead of the database; one replica at a time does it."""
    if not await _is_ahead(database, nats):
        return
    async with database.begin() as connection:
        await transaction_locks.acquire(connection, TransactionLock.STREAMS)
        if not await _is_ahead(database, nats):
            return
        _log.warning(
            "stream.created_again",
            reason="it has events that the database lacks, so the database is an older copy",
        )
        for name in (EVENTS, WORK):
            await delete_stream(nats, name)
        identity = await ensure_streams(nats, config)
        await determine_epoch(connection, None, identity)
        await outbox.publish_again(connection)


async def _publish_deleted(database: Database, nats: NatsConnection) -> None:
    """Begin an epoch in which all events are published again: a limit or a damaged disk deleted some."""
    async with database.begin() as connection:
        await transaction_locks.acquire(connection, TransactionLock.STREAMS)
        if not (await get_identity(nats)).is_incomplete:
            return  # another replica has done it
        await purge_incomplete(nats)
        before = await load_checkpoint(connection)
        await determine_epoch(connection, before, await get_identity(nats), may_have_lost=True)
        await outbox.publish_again(connection)
    await mark_complete(nats)


async def _is_ahead(database: Database, nats: NatsConnection) -> bool:
    """Return whether the stream has an event of a conversation that SQL knows, and SQL lacks the event.

    Events are published after their commit, so a transaction that begins after they were read sees them.
    Those up to the checkpoint were published before it, so only later ones are looked up: at most those of
    CHECK_SECONDS, unless the database is older.
    """
    async with database.read() as connection:
        checkpoint = await load_checkpoint(connection)
    identity = await get_identity(nats)
    if checkpoint is None or checkpoint.created != identity.created:
        return False
    async for events in _pages(nats, after=checkpoint.high_water):
        async with database.read() as connection:
            if await outbox.any_missing(connection, events):
                return True
    return False


async def _pages(nats: NatsConnection, *, after: int) -> AsyncIterator[Sequence[Event]]:
    """Yield the lasting events of all conversations after a position."""
    while True:
        request = {"seq": after + 1, "batch": _PAGE, "next_by_subj": ALL_LASTING}
        messages = await nats.direct_get(EVENTS, request)
        if not messages:
            return
        yield [Event.decode(message.data) for message in messages]
        after = int((messages[-1].headers or {})[SEQUENCE])


async def _has_former_events(nats: NatsConnection) -> bool:
    response = await nats.api_request(f"STREAM.INFO.{EVENTS}", {"subjects_filter": "ev.*.*"})
    if "error" in response:
        raise BrokerUnreachable(f"cannot list the subjects of {EVENTS}: {response['error']}")
    return bool(response["state"].get("subjects"))


async def _delete_former_events(nats: NatsConnection) -> None:
    for subject in _FORMER_SUBJECTS:
        response = await nats.api_request(f"STREAM.PURGE.{EVENTS}", {"filter": subject})
        if "error" in response:
            raise BrokerUnreachable(f"cannot purge {subject}: {response['error']}")
    _log.warning("stream.epoch_started", reason="an earlier version published the events to other subjects")


async def run(
    database: Database,
    nats: NatsConnection,
    config: StreamConfig,
    stream: JetStreamEvents,
    *,
    stop: asyncio.Event,
) -> None:
    """Store the stream's progress every few seconds, and begin a new epoch when the stream fell back.

    Raises DatabaseFellBack.
    """
    fallback = _DatabaseFallback(database, nats)
    wake = asyncio.Event()
    unwatch = nats.on_reconnect(wake.set)
    ending = asyncio.create_task(_wake_on_stop(stop, wake))
    try:
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await wake.wait()
            wake.clear()
            with log_errors("epochs"):
                if not await fallback.check():
                    await check_once(database, nats, config, stream)
            if fallback.is_found:
                raise DatabaseFellBack
    finally:
        unwatch()
        ending.cancel()


class _DatabaseFallback:
    """Looks, whenever connections to the database were opened, whether the stream is ahead of it.

    A stream that was created again since is one too: another replica has noticed it first.
    """

    def __init__(self, database: Database, nats: NatsConnection) -> None:
        self._database = database
        self._nats = nats
        self._opened = database.server_watch.opened
        self._created: str | None = None
        self.is_found = False

    async def check(self) -> bool:
        """Return whether the database fell back; raises DatabaseUnavailable, BrokerUnreachable."""
        if self._database.is_sqlite or not self._nats.is_connected:
            return False
        async with self._database.read() as connection:  # may open a connection
            await load_checkpoint(connection)
        opened, created = self._database.server_watch.opened, (await get_identity(self._nats)).created
        if opened != self._opened:
            is_replaced = self._created not in (None, created)
            self.is_found = is_replaced or await _is_ahead(self._database, self._nats)
        self._opened, self._created = opened, created
        return self.is_found


async def _wake_on_stop(stop: asyncio.Event, wake: asyncio.Event) -> None:
    await stop.wait()
    wake.set()


async def check_once(
    database: Database, nats: NatsConnection, config: StreamConfig, stream: JetStreamEvents
) -> None:
    """Store the stream's progress, undo changed settings, and begin a new epoch if events were lost.

    Raises DatabaseUnavailable, BrokerRefused, BrokerUnreachable.
    """
    if not nats.is_connected:
        return
    if await _restore_settings(nats, config) or await _mark_holes(nats, stream.holes):
        await _publish_deleted(database, nats)
    async with database.read() as connection:
        stored = await load_checkpoint(connection)
    before = _with_confirmed(stored, stream)
    identity = await _read_identity(nats, config)
    stream.note_usage(identity.usage, wanted_days=config.retention_days)
    if stored and before == stored == replace(stored, created=identity.created, high_water=identity.last_seq):
        epoch = format_epoch(stored.created, stored.bumps)
    else:
        async with database.begin() as connection:
            now = await load_checkpoint(connection)
            epoch = await determine_epoch(connection, before, identity)
            if now is not None and is_another(now, identity):  # else another replica noticed it too
                await outbox.publish_again(connection)
            elif before and epoch != stream.epoch and fell_back(before, identity):
                await outbox.publish_again(connection, after_seq=identity.last_seq)
    stream.begin_epoch(epoch)


async def _mark_holes(nats: NatsConnection, holes: LogHoles) -> bool:
    """Return whether readers met a hole in the log; it is marked, so that all events are published again."""
    hole = await holes.find(nats)
    if hole is None:
        return False
    _log.warning(
        "stream.hole_found",
        seq=hole.seq,
        reason="the log lacks events between others, as after a damage of its files: all are published again",
    )
    await mark_incomplete(nats)
    holes.note_repair()
    return True


def _with_confirmed(stored: StreamCheckpoint | None, stream: JetStreamEvents) -> StreamCheckpoint | None:
    """Return a checkpoint with the seqs that the broker has confirmed since: it may lose these too."""
    if stored is None or format_epoch(stored.created, stored.bumps) != stream.epoch:
        return stored
    return replace(stored, high_water=max(stored.high_water, stream.confirmed_seq))


async def _read_identity(nats: NatsConnection, config: StreamConfig) -> StreamIdentity:
    try:
        return await get_identity(nats)
    except BrokerRefused:  # deleted at run time: SQL has the state, so continue with an empty stream
        return await ensure_streams(nats, config)


async def _restore_settings(nats: NatsConnection, config: StreamConfig) -> bool:
    """Undo what somebody changed of the streams' settings; return whether that had deleted events."""
    identity = await _read_identity(nats, config)
    if not identity.changed and not await changed_streams(nats):
        return identity.is_incomplete
    try:
        return (await ensure_streams(nats, config)).is_incomplete
    except BrokerRefused as error:
        _log.warning("stream.settings_differ", changed=identity.changed, error=error)
        return False
