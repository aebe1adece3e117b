"""Sync working copies to the bucket on a schedule, and delete objects of deleted workspaces."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from delivery.database.engine import Database, DatabaseUnavailable
from gateway.config.setting_types import Role
from gateway.environments.workspaces import Workspaces
from gateway.infra.backing_services import BackgroundTask, BackingServices
from gateway.store.accounts import records
from sandbox.errors import SandboxError
from sandbox.labels import namespace
from sandbox.workspaces.working_copies import WorkingCopies

if TYPE_CHECKING:
    from sandbox.workspaces.s3.store import S3WorkspaceStore

log = structlog.get_logger(__name__)

SWEEP_EVERY_RUNS = 20
"""Passes between two sweeps of the bucket."""


class WorkspaceSyncLoop:
    """Syncs working copies to the bucket, and deletes copies and objects of deleted workspaces."""

    def __init__(
        self,
        database: Database,
        workspaces: Workspaces,
        *,
        interval: float,
        sweep_enabled: bool,
        sync_enabled: bool = True,
    ) -> None:
        self._database = database
        self._workspaces = workspaces
        self._interval = interval
        self._sweep_enabled = sweep_enabled
        self._sync_enabled = sync_enabled
        self._runs = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Sync at the start and every `interval` seconds until stopped; does nothing without a bucket.

        A running pass is cancelled by the stop; the next start syncs the rest.
        """
        copies, bucket = self._workspaces.working_copies, self._workspaces.bucket
        if copies is None or bucket is None:
            return
        tasks = [asyncio.create_task(self._run_regularly(copies, bucket)), asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await tasks[0]

    async def _run_regularly(self, copies: WorkingCopies, bucket: S3WorkspaceStore) -> None:
        while True:
            try:
                if self._sync_enabled:
                    await self.run_once(copies, sync_all=self._runs == 0)
                if self._sweep_enabled and self._runs % SWEEP_EVERY_RUNS == 0:
                    await self.sweep(bucket)
                self._runs += 1
            except (SandboxError, DatabaseUnavailable, OSError) as error:
                log.warning("workspaces.sync_delayed", error=error)
            except Exception:  # the outermost loop of the sync: the next pass must run
                log.exception("workspaces.sync_failed")
            await asyncio.sleep(self._interval)

    async def run_once(self, copies: WorkingCopies, *, sync_all: bool) -> None:
        """Sync the copies in use, or all of them with `sync_all`; delete copies of deleted workspaces."""
        existing = copies.list_existing()
        wanted, used = await self._list_namespaces(), frozenset(copies.list_synced())
        for name in existing:
            if name in wanted:
                if sync_all or name in used:
                    await _sync_copy(copies, name)
            elif await copies.baselines.get(name) is not None:
                log.info("workspace.copy_deleted", namespace=name)
                await _delete_copy(copies, name)

    async def sweep(self, bucket: S3WorkspaceStore) -> None:
        """Delete the objects of deleted workspaces; objects are listed before records are read."""
        listed = await bucket.list_namespaces()
        wanted = await self._list_namespaces()
        for name in listed:
            if name not in wanted:
                log.warning("workspace.orphan_deleted", namespace=name)
                await bucket.delete(name)

    async def _list_namespaces(self) -> frozenset[str]:
        async with self._database.read() as connection:
            found = await records.list_all(connection, "workspace")
        return frozenset(namespace(one.account, one.id) for one in found)


async def _delete_copy(copies: WorkingCopies, name: str) -> None:
    try:
        await copies.delete(name)
    except OSError as error:
        log.warning("workspace.delete_failed", namespace=name, error=str(error))


async def _sync_copy(copies: WorkingCopies, name: str) -> None:
    try:
        await copies.push_changes(name)
    except SandboxError as error:
        log.warning("workspace.sync_failed", namespace=name, error=str(error))


def workspace_sync_task(backing: BackingServices, workspaces: Workspaces) -> BackgroundTask:
    """Return the sync task of this process: turn workers have copies, the reaper sweeps the bucket."""
    roles = backing.settings.roles
    return WorkspaceSyncLoop(
        backing.database,
        workspaces,
        interval=backing.settings.workspaces.sync_interval,
        sweep_enabled=Role.REAPER in roles,
        sync_enabled=Role.TURNS in roles,
    ).run
