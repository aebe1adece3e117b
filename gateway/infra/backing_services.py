"""Open the backing services: data directory, database, vault, broker, streams, leases, wake-ups."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from delivery.broker import epochs, jetstream_events, stream_config
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.leases.renewal_thread import renewal_thread
from delivery.broker.port import Leases, WakeUps
from delivery.broker.wake_ups import JetStreamWakeUps, MemoryWakeUps
from delivery.database.clock import synchronized_with, utc_now
from delivery.database.engine import Database
from delivery.database.instance_claim import database_identity
from delivery.events.public_subjects import Announce, announce_with
from gateway.accounts.vault import Vault
from gateway.config.settings import Settings
from gateway.infra.callback_sockets import CallbackSockets
from gateway.infra.data_dir import DataDirBusy, DataDirLock, prepare_data_dir
from gateway.infra.embedded_nats import EmbeddedNats, open_embedded_nats
from gateway.infra.preflight import (
    claimed_database,
    connect_nats,
    find_lost_database,
    migrate_database,
    open_checked_vault,
    require_no_database_left,
    wanted_streams,
)
from gateway.infra.replica_presence import DatabaseAnnouncement, ReplicaPresence
from gateway.infra.shard_wake_ups import ShardWakeUps
from gateway.observability.fault_points import FaultPoints
from gateway.observability.log_file import logged_to_file
from gateway.observability.metrics import Metrics

log = structlog.get_logger(__name__)

BackgroundTask = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""A part of the gateway that runs until `stop` is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackingServices:
    """The opened backing services, for the composition root."""

    settings: Settings
    database: Database
    vault: Vault
    fault_points: FaultPoints
    stream: jetstream_events.JetStreamEvents
    leases: Leases
    wake_ups: WakeUps
    nats: NatsConnection
    stream_config: stream_config.StreamConfig
    worker_id: str
    """The unique name of this process."""
    instance: str
    """The name of this process among the replicas; a restart on the same data directory keeps it."""
    presence: ReplicaPresence | None
    """This process's presence among the replicas; None when there can be no replicas."""
    sole_process_since: datetime | None
    """Since when this is the only process on these files; None: there may be replicas."""
    locked_data_dir: Path | None
    """The data directory if this process has locked it; None: another replica has."""
    metrics: Metrics
    callback_sockets: CallbackSockets
    """The sockets on which sandboxes report the ends of their jobs."""

    @property
    def announce(self) -> Announce | None:
        """What sends copies of events to other programs; None with the embedded broker, which has none."""
        return announce_with(self.nats.publish_nowait) if self.settings.nats_url is not None else None


@asynccontextmanager
async def open_backing_services(settings: Settings) -> AsyncIterator[BackingServices]:
    """Open the services in order and close them in reverse order.

    Raises DataDirBusy, DataDirExposed, EmbeddedNatsFailed, DependencyUnavailable, DatabaseInUse,
    DatabaseRefused, BrokerInUse, DatabaseLeftBehind, DatabaseLost, SecretKeyMismatch,
    DatabaseUnavailable and DeliveryError, each with a message for the operator.
    """
    faults = FaultPoints(settings.fault_point)
    async with AsyncExitStack() as stack:
        prepare_data_dir(settings.data_dir)
        lock = _lock_data_dir(settings, stack)
        if lock is not None:
            stack.enter_context(_log_file(settings))
        if lost := await asyncio.to_thread(find_lost_database, settings):
            raise lost
        broker = await _open_embedded_nats(settings, lock, stack)
        database = await _open_database(settings, stack)
        await require_no_database_left(settings, database)
        vault = await open_checked_vault(settings, database)
        if lock is not None:
            lock.name_key(vault.first_key_id)
        nats = await _open_nats(settings, broker, stack)
        stream_settings = _stream_config(settings, broker)
        boot = secrets.token_hex(8)
        is_sole = lock is not None and not _is_shared(settings)
        holder = _lease_holder(lock, boot, sole_process=is_sole)
        leases = await _open_leases(settings, nats, holder, stack)
        announcement = await _announcement(settings, database, leases, vault, boot)
        if announcement is not None:
            await stream_config.create_events(nats, stream_settings)
            await stack.enter_async_context(announcement.maintained())
        epoch = await epochs.open_streams(
            database, nats, stream_settings, may_have_lost=broker is not None and broker.may_have_lost
        )
        if announcement is not None:  # streams that were created again had lost the announcement
            await announcement.require_alone()
        presence = ReplicaPresence(leases, instance=holder.instance, boot=boot, ttl=settings.lease_ttl)
        yield BackingServices(
            settings=settings,
            database=database,
            vault=vault,
            fault_points=faults,
            stream=await stack.enter_async_context(
                jetstream_events.open_events(
                    nats, epoch=epoch, has_expired=partial(epochs.has_expired, database, nats)
                )
            ),
            leases=leases,
            wake_ups=_wake_ups(settings, nats, stream_settings),
            nats=nats,
            stream_config=stream_settings,
            worker_id=boot,
            instance=holder.instance,
            presence=None if is_sole else presence,
            sole_process_since=utc_now() if is_sole else None,
            locked_data_dir=lock.directory if lock else None,
            metrics=Metrics(),
            callback_sockets=CallbackSockets(settings.data_dir / "callbacks"),
        )


def _log_file(settings: Settings) -> AbstractContextManager[None]:
    return logged_to_file(settings.data_dir, limit=settings.log_file_mb * 2**20, secrets=settings.secrets())


def _is_shared(settings: Settings) -> bool:
    """Return whether broker and database are both external, so that replicas may share the data directory."""
    return settings.nats_url is not None and settings.database_url is not None


def _lock_data_dir(settings: Settings, stack: AsyncExitStack) -> DataDirLock | None:
    """Lock the data directory; of several replicas that share it the first gets the lock."""
    try:
        return stack.enter_context(DataDirLock(settings.data_dir))
    except (DataDirBusy, OSError):
        if not _is_shared(settings):
            raise
        return None


def _lease_holder(lock: DataDirLock | None, boot: str, *, sole_process: bool) -> LeaseHolder:
    """Return the lease holder: the process that locks the directory takes over a killed one's leases.

    Replicas on several machines may see one directory through a file system whose locks do not span
    machines, and a directory may be copied for another replica. Host name and inode tell them apart.
    """
    if lock is None:
        return LeaseHolder(instance=boot, boot=boot)
    name = lock.instance_id()
    if not sole_process:
        name = f"{name}@{socket.gethostname()}:{lock.directory.stat().st_ino}"
    return LeaseHolder(instance=name, boot=boot, sole=True)


async def _open_embedded_nats(
    settings: Settings, lock: DataDirLock | None, stack: AsyncExitStack
) -> EmbeddedNats | None:
    """Start an embedded broker unless `nats_url` is set."""
    if settings.nats_url is not None:
        return None
    assert lock is not None, "without a lock both URLs are given"
    binary = str(settings.nats_bin) if settings.nats_bin else None
    return await stack.enter_async_context(open_embedded_nats(lock, binary=binary))


async def _open_nats(
    settings: Settings, embedded: EmbeddedNats | None, stack: AsyncExitStack
) -> NatsConnection:
    if embedded is not None:
        connecting = connect(embedded.url, token=embedded.token, on_unresponsive=embedded.check)
        return await stack.enter_async_context(connecting)
    assert settings.nats_url is not None, "there is a broker of our own or one that is named"
    return await connect_nats(settings.nats_url, stack)


async def _open_leases(
    settings: Settings, nats: NatsConnection, holder: LeaseHolder, stack: AsyncExitStack
) -> Leases:
    """Open the leases: in memory with a broker of our own, because no other process could take them."""
    if settings.nats_url is None:
        return MemoryLeases()
    renewals = await stack.enter_async_context(renewal_thread(settings.nats_url.get_secret_value()))
    return JetStreamLeases(nats, holder, renewals)


async def _announcement(
    settings: Settings, database: Database, leases: Leases, vault: Vault, boot: str
) -> DatabaseAnnouncement | None:
    """Return what announces the database on a broker that other gateways can use."""
    identity = None if settings.nats_url is None else await database_identity(database)
    if identity is None:
        return None
    return DatabaseAnnouncement(
        leases, database=identity, boot=boot, first_key=vault.first_key_id, ttl=settings.lease_ttl
    )


def _wake_ups(settings: Settings, nats: NatsConnection, streams: stream_config.StreamConfig) -> WakeUps:
    """Open the wake-ups: in memory with a broker of our own, because no other process could receive them."""
    if settings.nats_url is None:
        return MemoryWakeUps()
    return ShardWakeUps(nats, JetStreamWakeUps(nats, streams))


def _stream_config(settings: Settings, embedded: EmbeddedNats | None) -> stream_config.StreamConfig:
    """Return the stream config; the embedded broker limits its size."""
    wanted = wanted_streams(settings)
    if embedded is None:
        return wanted
    own = replace(wanted, max_bytes=embedded.storage_bytes, event_log_bytes=None)
    if settings.event_log_bytes is None:
        return own
    return replace(own, event_log_bytes=min(settings.event_log_bytes, own.event_log_limit))


async def _open_database(settings: Settings, stack: AsyncExitStack) -> Database:
    url = settings.database
    await stack.enter_async_context(claimed_database(settings))
    await migrate_database(url, settings.database_url)
    database = Database(url)
    stack.push_async_callback(database.close)
    if not database.is_sqlite:
        await stack.enter_async_context(database.server_watch.running())
        await stack.enter_async_context(synchronized_with(database))
    return database
