"""The stands of sandboxes: every provider the settings name, opened, with its rows, guard and snapshots."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from delivery.clock import utc_now
from delivery.ledger import Ledger
from gateway.ground import Ground
from gateway.register import SqlLeases, SqlRegister
from gateway.store import sandboxes
from gateway.workspaces import Workspaces, open_workspaces
from sandbox import registry as providers
from sandbox.guard import Guard
from sandbox.pool import Pool
from sandbox.port import Feature, Surroundings
from sandbox.register import Register
from sandbox.snapshots.keeper import Keeper
from sandbox.snapshots.local import LocalStore
from sandbox.snapshots.port import Store
from sandbox.stand import Stand


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands:
    """What the workbench and the reaper build on."""

    pools: Mapping[str, Pool]
    register: Register
    installation: str
    workspaces: Workspaces


async def open_stands(ground: Ground, ledger: Ledger, stack: AsyncExitStack) -> Stands:
    """Open the providers that the settings name; another is opened by naming it there."""
    register = SqlRegister(ledger, ground.metrics)
    async with ground.database.begin() as connection:
        installation = await sandboxes.installation(connection, secrets.token_hex(6))
    guard = _guard(ground)
    keeper = await _keeper(ground, stack)
    around = _surroundings(ground)
    workspaces = await open_workspaces(ground, installation, stack)
    pools = {}
    for name in sorted({"host", ground.settings.sandbox.provider}):
        plugin = providers.plugin(name)
        options = plugin.settings.model_validate(ground.settings.sandbox.of(name))
        provider = await stack.enter_async_context(plugin.open(options, around))
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
    return Stands(pools=pools, register=register, installation=installation, workspaces=workspaces)


def _guard(ground: Ground) -> Guard:
    """A gateway that is alone on its files needs no leases on its sandboxes."""
    if ground.alone_since is not None:
        return Guard()
    sandbox = ground.settings.sandbox
    leases = SqlLeases(ground.database, ground.runner)
    return Guard(leases, ttl=sandbox.guard_ttl, patience=sandbox.guard_patience)


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
            from gateway.snapshots import NatsStore

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
