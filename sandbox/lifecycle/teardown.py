"""Suspend, stop and delete sandboxes under the exclusive lock, and delete orphans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sandbox.errors import SandboxBusy, SandboxError, SandboxGone
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.reservations import Reservation, ReservationStatus, mark_stopped, suspend
from sandbox.lifecycle.snapshot_saver import save_snapshot
from sandbox.model import SandboxId, SandboxSpec, is_external

log = structlog.get_logger(__name__)

SYNC_RETRY_SECONDS = 3600.0
"""Seconds beyond its lifetime during which the files of an unreachable sandbox are requested."""

DELETIONS_AT_ONCE = 16
"""Orphans of one provider that are deleted at the same time; which account they were of is not known."""


class Teardown:
    """Suspends and deletes the sandboxes of one provider. `evict` closes what this process has open."""

    def __init__(self, backend: Backend, evict: Callable[[str], None]) -> None:
        self._backend = backend
        self._evict = evict

    async def suspend(self, row: Reservation, spec: SandboxSpec, *, reason: str) -> bool:
        """Suspend a sandbox; return False if it was used or changed since the row was read.

        An external one is left as it is; only its reservation counts no more seconds.
        Raises SandboxBusy if it is in use, ProviderRefused if a job runs in it.
        """
        async with self._backend.locks.exclusive(row.label):
            now = await self._reload_if_unchanged(row)
            if now is None or now.sandbox is None or now.paused or now.used_at > row.used_at:
                return False
            self._backend.checkpoint("sandbox.suspend.before")
            try:
                if not is_external(now.sandbox):
                    await (await self._backend.connect(now.sandbox, spec)).suspend()
            except SandboxGone:
                after, reason = mark_stopped(now, self._backend.clock()), "gone"
            else:
                after = suspend(now, self._backend.clock())
            self._backend.checkpoint("sandbox.suspend.after")
            self._evict(row.label)
            return await self._backend.reservations.compare_and_set(
                now, after, step="sandbox.suspend", reason=reason
            )

    async def stop(self, row: Reservation, spec: SandboxSpec, *, reason: str) -> bool:
        """Delete the instance of a row, after saving its snapshot and the workspace's files.

        Raises SandboxBusy if it is in use, and the provider's error if the files cannot be fetched now but
        may be later.
        """
        async with self._backend.locks.exclusive(row.label):
            now = await self._reload_if_unchanged(row)
            if now is None:
                return False
            if now.sandbox is not None:
                await self._sync_workspace(now, now.sandbox, spec)
            if now.persistent and now.sandbox is not None:
                now = await self._save_last_snapshot(now, now.sandbox, spec)
            if now.snapshot is None or now.is_stopped:
                return await self._delete(now, reason=reason)
            self._evict(now.label)
            after = mark_stopped(now, self._backend.clock())
            if await self._backend.reservations.compare_and_set(
                now, after, step="sandbox.end", reason=reason
            ):
                await self._destroy(now)
                return True
            return False

    async def _reload_if_unchanged(self, row: Reservation) -> Reservation | None:
        """Return the current row if it is still the one that the decision was made on."""
        now = await self._backend.reservations.get(row.label)
        return now if now is not None and now.lock_version == row.lock_version else None

    async def _sync_workspace(self, row: Reservation, sandbox_id: SandboxId, spec: SandboxSpec) -> None:
        """Save unsynced files in the workspace store; after an hour of failures the files are abandoned.

        That also holds for failures that the operator can end: a revoked key, or an account that the vendor
        has suspended. Only files that can never be had are abandoned at once.
        """
        workspace_sync = self._backend.sync_of(spec)
        if workspace_sync is None:
            return
        try:
            sandbox = await self._backend.connect(sandbox_id, spec)
            await workspace_sync.save(sandbox, spec)
        except SandboxGone:
            return
        except SandboxError as error:
            age = (self._backend.clock() - (row.made_at or row.used_at)).total_seconds()
            if error.remedy != "give_up" and age < row.max_lifetime + SYNC_RETRY_SECONDS:
                raise
            log.warning("sandbox.files_abandoned", label=row.label, error=str(error))

    async def _save_last_snapshot(
        self, row: Reservation, sandbox_id: SandboxId, spec: SandboxSpec
    ) -> Reservation:
        try:
            return await save_snapshot(self._backend, row, await self._backend.connect(sandbox_id, spec))
        except (SandboxError, OSError) as error:
            log.warning("sandbox.last_snapshot_failed", label=row.label, error=str(error))
            return row

    async def delete(self, label: str, *, reason: str, patience: float = 0.0) -> bool:
        """Delete a sandbox with its snapshots and its row; raises SandboxBusy if it is in use.

        `patience`: seconds to wait for the sandbox. It returns after a deletion in progress has ended.
        """
        async with self._backend.locks.exclusive(label, timeout=patience):
            now = await self._backend.reservations.get(label)
            return now is not None and await self._delete(now, reason=reason)

    async def _delete(self, row: Reservation, *, reason: str) -> bool:
        """Delete the row first: an object without a row is found by its label, whatever happens next."""
        if not await self._backend.reservations.delete(row, step="sandbox.delete", reason=reason):
            return False
        await self.cleanup(row)
        return True

    async def cleanup(self, row: Reservation) -> None:
        """Delete the object of a row that was deleted, perhaps with its workspace or account."""
        self._evict(row.label)
        await self._destroy(row)
        if self._backend.snapshotter is not None:
            await self._backend.snapshotter.delete_all(row.label)
        sync = self._backend.external_sync if is_external(row.sandbox) else self._backend.workspace_sync
        if sync is not None:
            await sync.delete_baseline(row.label)

    async def _destroy(self, row: Reservation) -> None:
        if row.sandbox is not None:
            await self._backend.provider.destroy(row.sandbox)
        self._backend.checkpoint("sandbox.delete.after_destroy")

    async def sweep(self, prefix: str) -> int:
        """Delete every sandbox of ours that has no row; return how many.

        Objects are listed before rows are read, and each is checked again under its label's exclusive lock: a
        row exists before its object does. A row without an instance remains from an abandoned restore; one
        with another instance was taken over from a process that died while the provider still created the
        sandbox. An object that cannot be deleted, or whose deletion hangs, delays no other one; the next
        sweep tries it again.
        """
        listed = await self._backend.provider.list(prefix)
        places = asyncio.Semaphore(DELETIONS_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            deletions = [
                group.create_task(self._try_to_destroy_orphan(one, label, places))
                for one, label in listed
                if label.startswith(prefix)
            ]
        return sum(deletion.result() for deletion in deletions)

    async def _try_to_destroy_orphan(
        self, sandbox_id: SandboxId, label: str, places: asyncio.Semaphore
    ) -> bool:
        try:
            async with places:
                return await self._destroy_if_orphan(sandbox_id, label)
        except (SandboxError, OSError) as error:
            log.warning("sandbox.orphan_kept", label=label, sandbox=str(sandbox_id), error=str(error))
            return False

    async def _destroy_if_orphan(self, sandbox_id: SandboxId, label: str) -> bool:
        if _may_belong_to(await self._backend.reservations.get(label), sandbox_id):
            return False
        try:
            async with self._backend.locks.exclusive(label):
                row = await self._backend.reservations.get(label)
                if _may_belong_to(row, sandbox_id):
                    return False
                log.warning("sandbox.orphan_removed", label=label, sandbox=str(sandbox_id))
                if row is None or row.is_stopped:
                    self._evict(label)
                await self._backend.provider.destroy(sandbox_id)
        except SandboxBusy:
            return False
        return True

    async def sweep_snapshots(self, prefix: str) -> int:
        """Delete the snapshots of labels without a row; return how many labels there were."""
        if self._backend.snapshotter is None:
            return 0
        gone = [
            label
            for label in await self._backend.snapshotter.list_labels(prefix)
            if await self._backend.reservations.get(label) is None
        ]
        for label in gone:
            await self._backend.snapshotter.delete_all(label)
        return len(gone)


def _may_belong_to(row: Reservation | None, sandbox_id: SandboxId) -> bool:
    """Return whether an instance belongs, or may soon belong, to the row of its label."""
    return row is not None and (row.status is ReservationStatus.CREATING or row.sandbox == sandbox_id)
