"""Sync working copies to the bucket on a schedule, and delete objects of deleted workspaces."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from delivery.database.engine import Database, Unavailable
from gateway.config.setting_types import Role
from gateway.environments.workspaces import Workspaces
from gateway.infra.backing_services import Ground, Running
from gateway.store.accounts import records
from sandbox.errors import SandboxError
from sandbox.labels import namespace
from sandbox.workspaces.s3_store import S3Store
from sandbox.workspaces.working_copies import Copies

log = structlog.get_logger(__name__)

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
