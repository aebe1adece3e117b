"""Take snapshots: packed under the lock of the sandbox, stored and recorded by compare-and-set on the row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from sandbox.errors import FeatureUnsupported, SandboxBusy, SandboxError, SandboxGone
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.reservations import Reservation, ReservationStatus, SandboxRequest, set_snapshot
from sandbox.lifecycle.snapshotter import PackedSnapshot, Snapshotter
from sandbox.lifecycle.unsaved import UnsavedSandboxes
from sandbox.model import SandboxId, SandboxSpec
from sandbox.port import Sandbox

Connect = Callable[[SandboxId, SandboxSpec], Awaitable[Sandbox]]

MAX_STAMPS = 4096
LOCK_TIMEOUT = 1.0
"""Seconds to wait for a sandbox in use; it is saved when it is free."""


class SnapshotSaver:
    """Takes the snapshots of one provider's sandboxes, while they may be used again.

    Use it for one sandbox at a time: `UnsavedSandboxes` has who is due.
    """

    def __init__(self, backend: Backend, unsaved: UnsavedSandboxes, connect: Connect) -> None:
        self._backend = backend
        self._unsaved = unsaved
        self._connect = connect
        self._stamps: dict[str, tuple[str, str]] = {}

    async def save(self, request: SandboxRequest) -> None:
        """Take a snapshot of what a sandbox holds now, also of one that was suspended meanwhile.

        Raises SandboxBusy if it is in use. A failure is raised, and makes it due again later.
        """
        snapshotter, label = self._backend.snapshotter, request.spec.label
        if snapshotter is None:
            self._unsaved.discard(label)
            return
        earlier = self._unsaved.begin(label)
        try:
            is_recorded = await self._save(snapshotter, request)
        except SandboxBusy:
            self._unsaved.restore(request, earlier)
            raise
        except SandboxGone:
            return
        except (SandboxError, OSError):
            self._unsaved.add(request, earlier)
            raise
        if not is_recorded:  # another process has saved it too, and either may be the older one
            self._unsaved.add(request, earlier)

    async def _save(self, snapshotter: Snapshotter, request: SandboxRequest) -> bool:
        """Pack under the lock and store after it; return whether the row has what was packed."""
        label = request.spec.label
        with snapshotter.scratch() as folder:
            async with self._backend.locks.exclusive(label, timeout=LOCK_TIMEOUT):
                row = await self._backend.reservations.get(label)
                if row is None or row.sandbox is None or row.status is not ReservationStatus.READY:
                    return True
                packed_at = self._backend.clock()
                sandbox = await self._connect(row.sandbox, request.spec)
                stamp = await _stamp_of(sandbox)
                if stamp is not None and self._stamps.get(label) == (row.snapshot, stamp):
                    packed = snapshotter.present(row)
                else:
                    self._backend.checkpoint("sandbox.snapshot.before")
                    packed = await snapshotter.pack(sandbox, row, folder)
            if packed is None:
                return True
            await snapshotter.store(packed)
        self._backend.checkpoint("sandbox.snapshot.after_put")
        async with self._backend.locks.shared(label):  # nobody deletes the row and makes another one
            is_recorded = await _record(self._backend, snapshotter, row, packed, packed_at) is not None
        if is_recorded and stamp is not None:
            self._remember(label, packed.name, stamp)
        return is_recorded

    def _remember(self, label: str, name: str, stamp: str) -> None:
        self._stamps.pop(label, None)
        if len(self._stamps) >= MAX_STAMPS:
            self._stamps.pop(next(iter(self._stamps)))
        self._stamps[label] = (name, stamp)


async def _stamp_of(sandbox: Sandbox) -> str | None:
    try:
        return await sandbox.stamp()
    except FeatureUnsupported:
        return None


async def save_snapshot(backend: Backend, row: Reservation, sandbox: Sandbox) -> Reservation:
    """Take the last snapshot of an instance and record it in the row unless the row has changed.

    The caller holds the lock, also while it is stored, because the instance ends afterwards. Returns the row.
    """
    snapshotter = backend.snapshotter
    if snapshotter is None:
        return row
    backend.checkpoint("sandbox.snapshot.before")
    packed_at = backend.clock()
    with snapshotter.scratch() as folder:
        packed = await snapshotter.pack(sandbox, row, folder)
        if packed is None:
            return row
        await snapshotter.store(packed)
    backend.checkpoint("sandbox.snapshot.after_put")
    return await _record(backend, snapshotter, row, packed, packed_at) or row


async def _record(
    backend: Backend, snapshotter: Snapshotter, row: Reservation, packed: PackedSnapshot, packed_at: datetime
) -> Reservation | None:
    """Record a stored snapshot in the row, and return the row; None, and delete it, if it came too late.

    The caller has a lock. The row may have changed since the packing, by a suspension for example. It came
    too late if there is another instance, or another snapshot.
    """
    current = await backend.reservations.get(row.label)
    while current is not None and _is_of_same_instance(row, current) and current.snapshot == row.snapshot:
        after = set_snapshot(current, packed.name, backend.clock(), packed_at=packed_at)
        if await backend.reservations.compare_and_set(current, after, step="sandbox.snapshot", reason=""):
            if packed.is_new:
                await snapshotter.prune(packed.name)
            return after
        current = await backend.reservations.get(row.label)
    if packed.is_new and (current is None or current.snapshot != packed.name):
        await snapshotter.delete(packed.name)
    return None


def _is_of_same_instance(row: Reservation, current: Reservation) -> bool:
    """Return whether a row has the instance that it had earlier, or had it last.

    A row that was deleted and made again has the same label, and may have the same boot and id.
    """
    return current.boot == row.boot and (current.made_at == row.made_at or current.is_stopped)
