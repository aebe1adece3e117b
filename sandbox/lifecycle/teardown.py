"""Letting go of sandboxes: put to sleep, ended, deleted, swept up; always with nobody using them."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from sandbox.errors import SandboxBusy, SandboxError, SandboxGone
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.pool import save_snapshot
from sandbox.lifecycle.reservations import Reservation, ReservationStatus, mark_stopped, suspend
from sandbox.model import SandboxId, SandboxSpec

log = structlog.get_logger(__name__)

SYNC_RETRY_SECONDS = 3600.0
"""Seconds beyond its lifetime for which a sandbox that does not answer is asked for its files."""


class Teardown:
    """What ends sandboxes of one provider. `evict` forgets what this process has open."""

    def __init__(self, backend: Backend, evict: Callable[[str], None]) -> None:
        self._backend = backend
        self._evict = evict

    async def suspend(self, row: Reservation, spec: SandboxSpec, *, reason: str) -> bool:
        """Put a sandbox to sleep; False when somebody has used or changed it since the row was read.

        Raises Busy when somebody uses it now, Refused when a job runs in it.
        """
        async with self._backend.locks.exclusive(row.label):
            now = await self._reload_if_unchanged(row)
            if now is None or now.sandbox is None or now.paused or now.used_at > row.used_at:
                return False
            self._backend.checkpoint("sandbox.suspend.before")
            try:
                await (await self._backend.provider.connect(now.sandbox, spec)).suspend()
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
        """Destroy the machine of a row, keeping what can be restored of it and the workspace's files.

        Raises Busy when it is in use, and what the provider says when the files cannot be had now and may be
        had later.
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
        """Return the row as it is now, if it is still the one that was judged."""
        now = await self._backend.reservations.get(row.label)
        return now if now is not None and now.lock_version == row.lock_version else None

    async def _sync_workspace(self, row: Reservation, sandbox_id: SandboxId, spec: SandboxSpec) -> None:
        """Bring to the workspace store what is nowhere else; after an hour in vain the files are given up."""
        if self._backend.workspace_sync is None:
            return
        try:
            sandbox = await self._backend.provider.connect(sandbox_id, spec)
            await self._backend.workspace_sync.sync(sandbox, spec)
        except SandboxGone:
            return
        except SandboxError as error:
            age = (self._backend.clock() - (row.made_at or row.used_at)).total_seconds()
            if error.remedy == "retry" and age < row.max_lifetime + SYNC_RETRY_SECONDS:
                raise
            log.warning("sandbox.files_abandoned", label=row.label, error=str(error))

    async def _save_last_snapshot(
        self, row: Reservation, sandbox_id: SandboxId, spec: SandboxSpec
    ) -> Reservation:
        try:
            return await save_snapshot(
                self._backend, row, await self._backend.provider.connect(sandbox_id, spec)
            )
        except (SandboxError, OSError) as error:
            log.warning("sandbox.last_snapshot_failed", label=row.label, error=str(error))
            return row

    async def delete(self, label: str, *, reason: str) -> bool:
        """Destroy a sandbox with its snapshots, and drop its row; raises Busy when somebody uses it."""
        async with self._backend.locks.exclusive(label):
            now = await self._backend.reservations.get(label)
            return now is not None and await self._delete(now, reason=reason)

    async def _delete(self, row: Reservation, *, reason: str) -> bool:
        """The row goes first: an object without a row is found by its label, whatever happens now."""
        if not await self._backend.reservations.delete(row, step="sandbox.delete", reason=reason):
            return False
        await self.cleanup(row)
        return True

    async def cleanup(self, row: Reservation) -> None:
        """Destroy what a row told of that has been dropped, perhaps with its workspace or account."""
        self._evict(row.label)
        await self._destroy(row)
        if self._backend.snapshotter is not None:
            await self._backend.snapshotter.delete_all(row.label)
        if self._backend.workspace_sync is not None:
            await self._backend.workspace_sync.delete_baseline(row.label)

    async def _destroy(self, row: Reservation) -> None:
        if row.sandbox is not None:
            await self._backend.provider.destroy(row.sandbox)
        self._backend.checkpoint("sandbox.delete.after_destroy")

    async def sweep(self, prefix: str) -> int:
        """Destroy every sandbox of ours that is no row's; returns how many.

        Objects are listed before rows are read, and each is judged again with nobody using its label: a row
        stands before its object does. A row without a machine is what a restore leaves that was given up; one
        with another machine was taken over from somebody who died while the service still made theirs.
        """
        listed = await self._backend.provider.list(prefix)
        return sum(
            [await self._destroy_if_orphan(one, label) for one, label in listed if label.startswith(prefix)]
        )

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
        """Remove the snapshots of labels without a row; returns how many labels there were."""
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
    """Say whether a machine is, or may be about to become, that of the row of its label."""
    return row is not None and (row.status is ReservationStatus.CREATING or row.sandbox == sandbox_id)
