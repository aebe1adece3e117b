"""Open every sandbox provider of the settings with its reservations, locks and snapshots."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transactions
from delivery.fair_gate import FairGate
from delivery.fair_threads import FairThreadPool
from gateway.config.sandbox_settings import SandboxSettings
from gateway.environments.egress import open_egress
from gateway.environments.job_replicas import JobReplicas
from gateway.environments.reservations import SqlLocks, SqlReservations
from gateway.environments.workspaces import Workspaces, open_workspaces
from gateway.infra.backing_services import BackingServices
from gateway.records.records import Records
from gateway.store import sandboxes
from sandbox import registry as providers
from sandbox.errors import SandboxError
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.external import open_provider
from sandbox.lifecycle.locks import SandboxLocks
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import ReservationStore
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.port import EgressProxies, Feature, Provider, ProviderContext, ProviderPlugin
from sandbox.snapshots.local import LocalSnapshotStore
from sandbox.snapshots.port import SnapshotStore

log = structlog.get_logger(__name__)

HOST_PROVIDER = "host"

KERNEL_THREADS = 3
"""Threads for calls that wait for this machine's kernel, which does most of them one after the other."""


MIN_STARTS = 2
"""The fewest commands that may start at once on this machine; there is one for each processor.

With two for each processor an account that always starts commands gets about a tenth more of them done, but
replies and commands of other accounts take a fifth longer (bench.neighbours).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The opened providers, as the environment resolver and the reaper use them."""

    pools: Mapping[str, Pool]
    reservations: ReservationStore
    installation: str
    workspaces: Workspaces
    missing_runtimes: Mapping[str, Sequence[str]]


async def open_backends(
    backing: BackingServices, records: Records, transactions: Transactions, stack: AsyncExitStack
) -> Backends:
    """Open the host provider, the configured one, and those that have a table in the settings."""
    reservations = SqlReservations(transactions, backing.metrics)
    async with backing.database.begin() as connection:
        installation = await sandboxes.get_or_create_installation(connection, secrets.token_hex(6))
    locks = await _open_locks(backing, stack)
    snapshotter = await _open_snapshotter(backing, stack)
    provider_context = _provider_context(backing, await open_egress(backing, records, stack), stack)
    workspaces = await open_workspaces(backing, installation, stack)
    pools, missing_runtimes = {}, {}
    for name in enabled_providers(backing.settings.sandbox):
        plugin = providers.plugin(name)
        provider = await _open_provider(backing.settings.sandbox, plugin, provider_context, stack)
        if provider is None:
            continue
        backend = Backend(
            provider=provider,
            reservations=reservations,
            locks=locks,
            snapshotter=snapshotter if Feature.SNAPSHOT in plugin.features else None,
            workspace_sync=workspaces.syncer_for(plugin.features),
            external_sync=workspaces.syncer,
            checkpoint=backing.fault_points.checkpoint,
            clock=utc_now,
            starting=FairGate(backing.settings.pool(backing.settings.sandbox.starts)).hold,
            count_jobs=reservations.count_jobs,
        )
        pools[name] = Pool(backend)
        missing_runtimes[name] = plugin.missing_runtimes(
            plugin.settings.model_validate(backing.settings.sandbox.for_provider(name))
        )
    return Backends(
        pools=pools,
        reservations=reservations,
        installation=installation,
        workspaces=workspaces,
        missing_runtimes=missing_runtimes,
    )


def enabled_providers(settings: SandboxSettings) -> Sequence[str]:
    """Return the names of the configured providers that are installed."""
    tables = set(settings.provider_tables) & set(providers.installed())
    return sorted({HOST_PROVIDER, settings.provider, *tables})


@asynccontextmanager
async def providers_inspected(settings: SandboxSettings) -> AsyncIterator[None]:
    """Inspect this machine for the enabled providers in a thread, while the block opens other parts."""
    inspected = asyncio.get_running_loop().run_in_executor(None, _inspect, settings)
    try:
        yield
    finally:
        await inspected


def _inspect(settings: SandboxSettings) -> None:
    try:
        for name in enabled_providers(settings):
            plugin = providers.plugin(name)
            plugin.inspect(plugin.settings.model_validate(settings.for_provider(name)))
    except (SandboxError, ImportError, LookupError, OSError, RuntimeError, ValueError) as error:
        # Opening the provider fails with it too, and decides what follows.
        log.debug("sandbox.inspection_failed", error=str(error))


async def _open_provider(
    settings: SandboxSettings, plugin: ProviderPlugin, context: ProviderContext, stack: AsyncExitStack
) -> Provider | None:
    """Open a provider; returns None when a provider fails that is neither the host nor the default one."""
    options = plugin.settings.model_validate(settings.for_provider(plugin.name))
    try:
        return await stack.enter_async_context(open_provider(plugin, options, context))
    except (SandboxError, ImportError) as error:
        if plugin.name in {HOST_PROVIDER, settings.provider}:
            raise
        log.warning("sandbox.provider_open_failed", provider=plugin.name, error=str(error))
        return None


async def _open_locks(backing: BackingServices, stack: AsyncExitStack) -> SandboxLocks:
    """Open the sandbox locks; a gateway without replicas needs no lock store."""
    presence, sandbox = backing.presence, backing.settings.sandbox
    if presence is None:
        return SandboxLocks()
    leases = SqlLocks(backing.database, presence.name, presence=presence)
    locks = SandboxLocks(leases, ttl=sandbox.lock_ttl, timeout=sandbox.lock_timeout)
    await stack.enter_async_context(presence.maintained(locks.recheck))
    return locks


async def _open_snapshotter(backing: BackingServices, stack: AsyncExitStack) -> Snapshotter | None:
    """Open the configured snapshot store; None when snapshots are disabled."""
    settings = backing.settings.sandbox
    store: SnapshotStore
    match settings.snapshots:
        case "none":
            return None
        case "local":
            store = LocalSnapshotStore(backing.settings.data_dir / "snapshots")
        case "s3":
            from sandbox.snapshots.s3 import Bucket, open_store

            store = await stack.enter_async_context(open_store(Bucket(**settings.snapshot_s3.with_secrets())))
        case "redis":
            from sandbox.snapshots.redis_store import RedisStoreOptions
            from sandbox.snapshots.redis_store import open_store as open_redis

            options = RedisStoreOptions(**settings.snapshot_redis.with_secrets())
            store = await stack.enter_async_context(open_redis(options))
        case "nats":
            from gateway.infra.nats_snapshots import NatsSnapshotStore

            store = await NatsSnapshotStore.open(backing.nats)
    scratch = backing.settings.data_dir / "scratch"
    return Snapshotter(store, scratch, limit=settings.snapshot_limit_mb * 1024 * 1024)


def _provider_context(
    backing: BackingServices, egress: EgressProxies, stack: AsyncExitStack
) -> ProviderContext:
    settings = backing.settings
    executor = FairThreadPool(settings.pool(KERNEL_THREADS), name="sandboxes")
    stack.callback(executor.shutdown, wait=False)
    context = ProviderContext(
        state=settings.data_dir / "sandboxes",
        callbacks=backing.callback_sockets,
        callback_url=settings.public_url or "",
        allow_unsandboxed=settings.allow_unsandboxed_host,
        checkpoint=backing.fault_points.checkpoint,
        egress=egress,
        executor=executor,
        starts=FairGate(settings.pool(max(MIN_STARTS, len(os.sched_getaffinity(0))))),
    )
    for directory in (context.state, context.callbacks.root):
        directory.mkdir(mode=0o700, exist_ok=True)
    return context


def job_replicas(backing: BackingServices) -> JobReplicas:
    """Return the owner of the host's jobs: this replica, unless there is one, or all share its directory."""
    if backing.presence is None or backing.settings.shared_files:
        return JobReplicas()
    return JobReplicas(
        replica=backing.presence.instance,
        local_provider=HOST_PROVIDER,
        alone=backing.settings.replicas == 1,
        is_running=backing.presence.is_instance_present,
    )
