"""The ground everything stands on: data directory, database, vault, broker, stream, leases, signals."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from delivery.broker import epochs, jetstream_events, stream_config
from delivery.broker.connection import Link, connect
from delivery.broker.leases import Holder, JetStreamLeases
from delivery.broker.wake_ups import JetStreamSignals
from delivery.database.clock import followed, utc_now
from delivery.database.engine import Database
from gateway.accounts.vault import Vault, open_vault
from gateway.config.settings import Settings
from gateway.infra.data_dir import DataDirBusy, DataDirLock
from gateway.infra.embedded_nats import Broker, embedded
from gateway.infra.preflight import migrate_named, reach_broker, try_keys
from gateway.infra.replica_presence import Presence
from gateway.observability.fault_points import Faults
from gateway.observability.metrics import Metrics

log = structlog.get_logger(__name__)

DAY = 86400.0

Running = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""A part of the gateway that runs until it is told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the composition root builds on."""

    settings: Settings
    database: Database
    vault: Vault
    faults: Faults
    stream: jetstream_events.JetStream
    leases: JetStreamLeases
    signals: JetStreamSignals
    link: Link
    layout: stream_config.Layout
    runner: str
    """The name of this process, which no other has had."""
    presence: Presence | None
    """What the other replicas know of this process by, and it of them; None where there can be none."""
    alone_since: datetime | None
    """Since when no other process answers from these files; None: there may be replicas."""
    home: Path | None
    """The data directory while it is ours alone; None: another replica has it too."""
    metrics: Metrics


@asynccontextmanager
async def lay(settings: Settings) -> AsyncIterator[Ground]:
    """Open what is needed, in order; everything is closed in the opposite order.

    Raises DataDirBusy, BrokerFailed, Unanswered, WrongKeys, Unavailable, DeliveryError: each a line for the
    operator.
    """
    faults = Faults(settings.fault)
    async with AsyncExitStack() as stack:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _lock(settings, stack)
        broker = await _broker(settings, lock, stack)
        database = await _database(settings, stack)
        vault = open_vault(settings.data_dir, settings.secret_keys)
        await try_keys(database, vault)
        link = await _link(settings, broker, stack)
        wanted = _layout(settings, broker)
        epoch = await epochs.begin(
            database, link, wanted, may_have_lost=broker is not None and broker.may_have_lost
        )
        boot = secrets.token_hex(8)
        alone = lock is not None and not _is_shared(settings)
        holder = _holder(lock, boot, alone=alone)
        leases = JetStreamLeases(link, holder)
        presence = Presence(leases, instance=holder.instance, boot=boot, ttl=settings.lease_ttl)
        yield Ground(
            settings=settings,
            database=database,
            vault=vault,
            faults=faults,
            stream=await stack.enter_async_context(jetstream_events.opened(link, epoch=epoch)),
            leases=leases,
            signals=JetStreamSignals(link, wanted),
            link=link,
            layout=wanted,
            runner=boot,
            presence=None if alone else presence,
            alone_since=utc_now() if alone else None,
            home=lock.directory if lock else None,
            metrics=Metrics(),
        )


def _is_shared(settings: Settings) -> bool:
    """Say whether nothing of what counts is in the data directory, so that replicas may use it together."""
    return settings.nats_url is not None and settings.database_url is not None


def _lock(settings: Settings, stack: AsyncExitStack) -> DataDirLock | None:
    """Lock the data directory; an embedded broker or database needs that, of replicas the first gets it."""
    try:
        return stack.enter_context(DataDirLock(settings.data_dir))
    except (DataDirBusy, OSError):
        if not _is_shared(settings):
            raise
        return None


def _holder(lock: DataDirLock | None, boot: str, *, alone: bool) -> Holder:
    """Say who holds our leases: whoever has the directory takes over at once what a killed process held.

    Replicas on several machines may see one directory through a file system whose locks do not reach so
    far, and a directory may be copied for another replica: machine and inode tell them apart.
    """
    if lock is None:
        return Holder(instance=boot, boot=boot)
    name = lock.instance()
    if not alone:
        name = f"{name}@{socket.gethostname()}:{lock.directory.stat().st_ino}"
    return Holder(instance=name, boot=boot, sole=True)


async def _broker(settings: Settings, lock: DataDirLock | None, stack: AsyncExitStack) -> Broker | None:
    """Start a broker of our own unless another is named."""
    if settings.nats_url is not None:
        return None
    assert lock is not None, "without a lock both URLs are given"
    binary = str(settings.nats_bin) if settings.nats_bin else None
    return await stack.enter_async_context(embedded(lock, binary=binary))


async def _link(settings: Settings, broker: Broker | None, stack: AsyncExitStack) -> Link:
    if broker is not None:
        connecting = connect(broker.url, token=broker.token, unresponsive=broker.restart)
        return await stack.enter_async_context(connecting)
    assert settings.nats_url is not None, "there is a broker of our own or one that is named"
    return await reach_broker(settings.nats_url, stack)


def _layout(settings: Settings, broker: Broker | None) -> stream_config.Layout:
    """Our own broker knows how much of the disk its streams may take."""
    wanted = stream_config.Layout(keep_days=settings.event_max_age / DAY)
    return wanted if broker is None else replace(wanted, budget=broker.budget)


async def _database(settings: Settings, stack: AsyncExitStack) -> Database:
    url = settings.database
    await migrate_named(url, settings.database_url)
    database = Database(url)
    stack.push_async_callback(database.close)
    if not database.is_sqlite:
        await stack.enter_async_context(followed(database))
    return database
