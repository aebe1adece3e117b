"""The workspace store that the settings name, and what carries files between it and sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from delivery.database import Database, Unavailable
from gateway.datadir import DataDirLock
from gateway.ground import Ground, Running
from gateway.options import Role
from gateway.store import records
from sandbox.bucket import Bucket, opened
from sandbox.errors import Refused, SandboxError, Unreachable
from sandbox.port import Feature
from sandbox.scope import namespace
from sandbox.sync.bases import LocalBases
from sandbox.sync.carrier import Carrier, unnoticed
from sandbox.workspaces.copies import Copies
from sandbox.workspaces.directory import DirectoryStore
from sandbox.workspaces.port import Store
from sandbox.workspaces.remembered import BucketBases
from sandbox.workspaces.s3 import S3Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """The one door to workspaces' files.

    `carrier` is for providers elsewhere; `copies` for those that mount directories, where the store is none.
    """

    store: Store
    root: Path
    carrier: Carrier
    copies: Copies | None = None
    bucket: S3Store | None = None

    def directory(self, namespace: str) -> Path:
        """Return the directory that is mounted for a workspace: the store's own, or a working copy."""
        if self.copies is not None:
            return self.copies.directory(namespace)
        path = self.root / namespace
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def carrier_for(self, features: frozenset[Feature]) -> Carrier | None:
        """Return what brings files to sandboxes of a provider and back; None: they see the store itself."""
        return self.copies if Feature.MOUNTS_WORKSPACE in features else self.carrier

    async def forget(self, namespace: str) -> None:
        """Remove a workspace's files; what the store refuses now, the next look finds."""
        if self.copies is not None:
            await self.copies.drop(namespace)
        try:
            await self.store.forget(namespace)
        except SandboxError as error:
            log.warning("workspace.not_forgotten", namespace=namespace, error=str(error))


def on_disk(
    root: Path, *, carried: Path, limit: int, checkpoint: Callable[[str], None] = unnoticed
) -> Workspaces:
    """Return workspaces as directories of this machine."""
    store = DirectoryStore(root)
    carrier = Carrier(store, LocalBases(carried), limit=limit, checkpoint=checkpoint)
    return Workspaces(store=store, root=root, carrier=carrier)


async def open_workspaces(ground: Ground, installation: str, stack: AsyncExitStack) -> Workspaces:
    """Open the store; raises Refused when a bucket cannot be used, DataDirBusy."""
    settings, limit = ground.settings, ground.settings.sandbox.sync_limit_mb * 1024 * 1024
    checkpoint = ground.faults.checkpoint
    root, carried = settings.data_dir / "workspaces", settings.data_dir / "carried"
    if settings.workspaces.store == "directory":
        return on_disk(root, carried=carried, limit=limit, checkpoint=checkpoint)
    bucket = Bucket(**settings.workspaces.s3.opened())
    bucket = replace(bucket, prefix=f"{bucket.prefix}{installation}/")
    if ground.alone_since is None and Role.TURNS in settings.roles:
        stack.enter_context(DataDirLock(root))  # copies are carried by one process: another needs its own
    client = await stack.enter_async_context(opened(bucket, "workspaces"))
    objects = S3Store(client, bucket)
    await _proven(objects)
    return Workspaces(
        store=objects,
        root=root,
        carrier=Carrier(objects, BucketBases(client, bucket), limit=limit, checkpoint=checkpoint),
        copies=Copies(objects, root, LocalBases(carried), checkpoint=checkpoint),
        bucket=objects,
    )


async def _proven(store: S3Store) -> None:
    """Raise Refused when the bucket refuses: it would refuse every turn. It may be away for a while."""
    try:
        await store.prove()
    except Unreachable as error:
        log.warning("workspaces.unreachable", error=str(error))
    except SandboxError as error:
        named = f"workspaces.s3.bucket = {store.bucket.bucket!r} cannot be used: {error}"
        raise Refused(
            f"{named}; make the bucket, or correct workspaces.s3 and what its keys may do"
        ) from error


SWEEP_AFTER = 20
"""Looks between two sweeps of the bucket."""


class Looks:
    """Carry what working copies hold and the bucket does not, and remove what nobody has any more."""

    def __init__(
        self, database: Database, workspaces: Workspaces, *, every: float, sweeps: bool, carries: bool = True
    ) -> None:
        self._database = database
        self._workspaces = workspaces
        self._every = every
        self._sweeps = sweeps
        self._carries = carries
        self._count = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Look at the start and every so often, until stopped; where the store is a directory, never.

        A look is left where it is: what was not carried by then is carried after the next start.
        """
        copies, bucket = self._workspaces.copies, self._workspaces.bucket
        if copies is None or bucket is None:
            return
        tasks = [asyncio.create_task(self._rounds(copies, bucket)), asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await tasks[0]

    async def _rounds(self, copies: Copies, bucket: S3Store) -> None:
        while True:
            try:
                if self._carries:
                    await self.look(copies, first=self._count == 0)
                if self._sweeps and self._count % SWEEP_AFTER == 0:
                    await self.sweep(bucket)
                self._count += 1
            except (SandboxError, Unavailable, OSError) as error:
                log.warning("workspaces.look_waits", error=str(error))
            await asyncio.sleep(self._every)

    async def look(self, copies: Copies, *, first: bool) -> None:
        """Carry from the working copies in use, at first from all; drop those of workspaces that are gone."""
        there = copies.known()
        held, used = await self._held(), frozenset(copies.used())
        for name in there:
            if name in held:
                if first or name in used:
                    await _carried(copies, name)
            elif await copies.bases.find(name) is not None:
                log.info("workspace.copy_dropped", namespace=name)
                await copies.drop(name)

    async def sweep(self, bucket: S3Store) -> None:
        """Remove the objects of workspaces that are gone: objects are listed before records are read."""
        listed = await bucket.namespaces()
        held = await self._held()
        for name in listed:
            if name not in held:
                log.warning("workspace.orphan_removed", namespace=name)
                await bucket.forget(name)

    async def _held(self) -> frozenset[str]:
        async with self._database.read() as connection:
            found = await records.every(connection, "workspace")
        return frozenset(namespace(one.account, one.id) for one in found)


async def _carried(copies: Copies, name: str) -> None:
    try:
        await copies.look(name)
    except SandboxError as error:
        log.warning("workspace.not_carried", namespace=name, error=str(error))


def looking(ground: Ground, workspaces: Workspaces) -> Running:
    """Return the looks of this process: who performs turns has copies, the reaper sweeps the bucket."""
    roles = ground.settings.roles
    return Looks(
        ground.database,
        workspaces,
        every=ground.settings.workspaces.look_interval,
        sweeps=Role.REAPER in roles,
        carries=Role.TURNS in roles,
    ).run
