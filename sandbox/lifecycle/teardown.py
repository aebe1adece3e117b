"""Letting go of sandboxes: put to sleep, ended, deleted, swept up; always with nobody using them."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from sandbox.errors import Busy, Gone, SandboxError
from sandbox.lifecycle.backend import Stand
from sandbox.lifecycle.pool import save
from sandbox.lifecycle.reservations import Reservation, Status, cold, suspended
from sandbox.model import SandboxId, Spec

log = structlog.get_logger(__name__)

PATIENCE = 3600.0
"""Seconds beyond its lifetime for which a sandbox that does not answer is asked for its files."""


class Endings:
    """What ends sandboxes of one provider. `evict` forgets what this process has open."""

    def __init__(self, stand: Stand, evict: Callable[[str], None]) -> None:
        self._stand = stand
        self._evict = evict

    async def suspend(self, row: Reservation, spec: Spec, *, why: str) -> bool:
        """Put a sandbox to sleep; False when somebody has used or changed it since the row was read.

        Raises Busy when somebody uses it now, Refused when a job runs in it.
        """
        async with self._stand.guard.alone(row.label):
            now = await self._same(row)
            if now is None or now.sandbox is None or now.paused or now.used_at > row.used_at:
                return False
            self._stand.checkpoint("sandbox.suspend.before")
            try:
                await (await self._stand.provider.connect(now.sandbox, spec)).suspend()
            except Gone:
                after, why = cold(now, self._stand.clock()), "gone"
            else:
                after = suspended(now, self._stand.clock())
            self._stand.checkpoint("sandbox.suspend.after")
            self._evict(row.label)
            return await self._stand.register.swap(now, after, step="sandbox.suspend", why=why)

    async def end(self, row: Reservation, spec: Spec, *, why: str) -> bool:
        """Destroy the machine of a row, keeping what can be restored of it and the workspace's files.

        Raises Busy when it is in use, and what the provider says when the files cannot be had now and may be
        had later.
        """
        async with self._stand.guard.alone(row.label):
            now = await self._same(row)
            if now is None:
                return False
            if now.sandbox is not None:
                await self._carry_home(now, now.sandbox, spec)
            if now.persistent and now.sandbox is not None:
                now = await self._last_snapshot(now, now.sandbox, spec)
            if now.snapshot is None or now.is_cold:
                return await self._delete(now, why=why)
            self._evict(now.label)
            after = cold(now, self._stand.clock())
            if await self._stand.register.swap(now, after, step="sandbox.end", why=why):
                await self._destroy(now)
                return True
            return False

    async def _same(self, row: Reservation) -> Reservation | None:
        """Return the row as it is now, if it is still the one that was judged."""
        now = await self._stand.register.find(row.label)
        return now if now is not None and now.lock_version == row.lock_version else None

    async def _carry_home(self, row: Reservation, sandbox_id: SandboxId, spec: Spec) -> None:
        """Bring to the workspace store what is nowhere else; after an hour in vain the files are given up."""
        if self._stand.carrier is None:
            return
        try:
            sandbox = await self._stand.provider.connect(sandbox_id, spec)
            await self._stand.carrier.carry(sandbox, spec)
        except Gone:
            return
        except SandboxError as error:
            age = (self._stand.clock() - (row.made_at or row.used_at)).total_seconds()
            if error.remedy == "retry" and age < row.max_lifetime + PATIENCE:
                raise
            log.warning("sandbox.files_given_up", label=row.label, error=str(error))

    async def _last_snapshot(self, row: Reservation, sandbox_id: SandboxId, spec: Spec) -> Reservation:
        try:
            return await save(self._stand, row, await self._stand.provider.connect(sandbox_id, spec))
        except (SandboxError, OSError) as error:
            log.warning("sandbox.last_snapshot_failed", label=row.label, error=str(error))
            return row

    async def delete(self, label: str, *, why: str) -> bool:
        """Destroy a sandbox with its snapshots, and drop its row; raises Busy when somebody uses it."""
        async with self._stand.guard.alone(label):
            now = await self._stand.register.find(label)
            return now is not None and await self._delete(now, why=why)

    async def _delete(self, row: Reservation, *, why: str) -> bool:
        """The row goes first: an object without a row is found by its label, whatever happens now."""
        if not await self._stand.register.drop(row, step="sandbox.delete", why=why):
            return False
        await self.release(row)
        return True

    async def release(self, row: Reservation) -> None:
        """Destroy what a row told of that has been dropped, perhaps with its workspace or account."""
        self._evict(row.label)
        await self._destroy(row)
        if self._stand.keeper is not None:
            await self._stand.keeper.forget(row.label)
        if self._stand.carrier is not None:
            await self._stand.carrier.forget(row.label)

    async def _destroy(self, row: Reservation) -> None:
        if row.sandbox is not None:
            await self._stand.provider.destroy(row.sandbox)
        self._stand.checkpoint("sandbox.delete.after_destroy")

    async def sweep(self, prefix: str) -> int:
        """Destroy every sandbox of ours that is no row's; returns how many.

        Objects are listed before rows are read, and each is judged again with nobody using its label: a row
        stands before its object does. A row without a machine is what a restore leaves that was given up; one
        with another machine was taken over from somebody who died while the service still made theirs.
        """
        listed = await self._stand.provider.list(prefix)
        return sum([await self._is_swept(one, label) for one, label in listed if label.startswith(prefix)])

    async def _is_swept(self, sandbox_id: SandboxId, label: str) -> bool:
        if _is_its(await self._stand.register.find(label), sandbox_id):
            return False
        try:
            async with self._stand.guard.alone(label):
                row = await self._stand.register.find(label)
                if _is_its(row, sandbox_id):
                    return False
                log.warning("sandbox.orphan_removed", label=label, sandbox=str(sandbox_id))
                if row is None or row.is_cold:
                    self._evict(label)
                await self._stand.provider.destroy(sandbox_id)
        except Busy:
            return False
        return True

    async def sweep_snapshots(self, prefix: str) -> int:
        """Remove the snapshots of labels without a row; returns how many labels there were."""
        if self._stand.keeper is None:
            return 0
        gone = [
            label
            for label in await self._stand.keeper.labels(prefix)
            if await self._stand.register.find(label) is None
        ]
        for label in gone:
            await self._stand.keeper.forget(label)
        return len(gone)


def _is_its(row: Reservation | None, sandbox_id: SandboxId) -> bool:
    """Say whether a machine is, or may be about to become, that of the row of its label."""
    return row is not None and (row.status is Status.CREATING or row.sandbox == sandbox_id)
