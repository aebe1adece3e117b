"""The stands of sandboxes: every provider the settings name, opened, with its rows, guard and snapshots."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Ledger
from gateway.config.setting_types import SandboxSettings
from gateway.environments.reservations import SqlLeases, SqlRegister
from gateway.environments.workspaces import Workspaces, open_workspaces
from gateway.infra.backing_services import Ground
from gateway.store import sandboxes
from sandbox import registry as providers
from sandbox.errors import SandboxError
from sandbox.lifecycle.backend import Stand
from sandbox.lifecycle.locks import Guard
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Register
from sandbox.lifecycle.snapshotter import Keeper
from sandbox.port import Feature, Provider, ProviderPlugin, Surroundings
from sandbox.snapshots.local import LocalStore
from sandbox.snapshots.port import Store

log = structlog.get_logger(__name__)

HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands:
    """What the workbench and the reaper build on."""

    pools: Mapping[str, Pool]
    register: Register
    installation: str
    workspaces: Workspaces
    lacking: Mapping[str, Sequence[str]]


async def open_stands(ground: Ground, ledger: Ledger, stack: AsyncExitStack) -> Stands:
    """Open this machine's provider, the chosen one, and those that have a table in the settings."""
    register = SqlRegister(ledger, ground.metrics)
    async with ground.database.begin() as connection:
        installation = await sandboxes.installation(connection, secrets.token_hex(6))
    guard = await _guard(ground, stack)
    keeper = await _keeper(ground, stack)
    around = _surroundings(ground)
    workspaces = await open_workspaces(ground, installation, stack)
    pools, lacking = {}, {}
    for name in opened_by(ground.settings.sandbox):
        plugin = providers.plugin(name)
        provider = await _provider(ground.settings.sandbox, plugin, around, stack)
        if provider is None:
            continue
        stand = Stand(
            provider=provider,
            register=register,
            guard=guard,
            keeper=keeper if Feature.SNAPSHOT in plugin.features else None,
            carrier=workspaces.carrier_for(plugin.features),
            checkpoint=ground.faults.checkpoint,
            clock=utc_now,
        )
        pools[name] = Pool(stand)
        lacking[name] = plugin.lacking(plugin.settings.model_validate(ground.settings.sandbox.of(name)))
    return Stands(
        pools=pools,
        register=register,
        installation=installation,
        workspaces=workspaces,
        lacking=lacking,
    )


def opened_by(settings: SandboxSettings) -> Sequence[str]:
    """Return the names of the providers that these settings want opened, as far as they are installed."""
    tables = set(settings.tables) & set(providers.installed())
    return sorted({HOST, settings.provider, *tables})


async def _provider(
    settings: SandboxSettings, plugin: ProviderPlugin, around: Surroundings, stack: AsyncExitStack
) -> Provider | None:
    """Open a provider; None for one that cannot be and is no more than a further one."""
    options = plugin.settings.model_validate(settings.of(plugin.name))
    try:
        return await stack.enter_async_context(plugin.open(options, around))
    except (SandboxError, ImportError) as error:
        if plugin.name in {HOST, settings.provider}:
            raise
        log.warning("sandbox.provider_not_open", provider=plugin.name, error=str(error))
        return None


async def _guard(ground: Ground, stack: AsyncExitStack) -> Guard:
    """A gateway that is alone on its files needs no leases on its sandboxes."""
    presence, sandbox = ground.presence, ground.settings.sandbox
    if presence is None:
        return Guard()
    leases = SqlLeases(ground.database, presence.name, presence=presence)
    guard = Guard(leases, ttl=sandbox.guard_ttl, patience=sandbox.guard_patience)
    await stack.enter_async_context(presence.kept(guard.doubt))
    return guard


async def _keeper(ground: Ground, stack: AsyncExitStack) -> Keeper | None:
    """Open the store of snapshots that the settings name."""
    settings = ground.settings.sandbox
    store: Store
    match settings.snapshots:
        case "none":
            return None
        case "local":
            store = LocalStore(ground.settings.data_dir / "snapshots")
        case "s3":
            from sandbox.snapshots.s3 import Bucket, open_bucket

            store = await stack.enter_async_context(open_bucket(Bucket(**settings.snapshot_s3.opened())))
        case "nats":
            from gateway.infra.nats_snapshots import NatsStore

            store = await NatsStore.open(ground.link)
    scratch = ground.settings.data_dir / "scratch"
    return Keeper(store, scratch, limit=settings.snapshot_limit_mb * 1024 * 1024)


def _surroundings(ground: Ground) -> Surroundings:
    settings = ground.settings
    surroundings = Surroundings(
        state=settings.data_dir / "sandboxes",
        callbacks=settings.data_dir / "callbacks",
        callback_url=settings.public_url or "",
        allow_unsandboxed=settings.allow_unsandboxed_host,
        checkpoint=ground.faults.checkpoint,
    )
    for directory in (surroundings.state, surroundings.callbacks):
        directory.mkdir(mode=0o700, exist_ok=True)
    return surroundings
