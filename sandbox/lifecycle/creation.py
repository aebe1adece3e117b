"""Create the sandbox of a reservation by compare-and-set on the row.

The process that moves a row to `creating` creates the sandbox; others poll the row until it is ready. The
lock admits one process at a time, so a row that is `creating` on behalf of another process belongs to one
that died: it is taken over at once. The provider's object has the row's label from its creation, so a crash
at any point leaves either a `creating` row or an orphaned object, which the reaper deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.errors import SandboxError
from sandbox.exec.shielded import Cancellation, cancel_and_wait, shielded, shielded_outcome
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.reservations import (
    Reservation,
    ReservationStore,
    SandboxRequest,
    heartbeat,
    mark_ready,
    mark_stopped,
)
from sandbox.port import Sandbox

Claim = Callable[[], Awaitable[bool]]

HEARTBEAT_SECONDS = 8.0
"""Seconds between heartbeats of a process that creates a sandbox; less than half of STUCK_SECONDS."""


class ReservationConflict(Exception):
    """Another process changed the row first; the caller reads it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSandbox:
    """A new sandbox with its row; `is_restored`: its files come from a snapshot."""

    row: Reservation
    sandbox: Sandbox
    is_restored: bool


class SandboxCreator:
    """Creates sandboxes, one at a time for each label in this process."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._reservations = backend.reservations
        self._clock = backend.clock
        self._creating: set[str] = set()

    def raise_if_creating(self, label: str) -> None:
        """Raise ReservationConflict if this process is creating the sandbox of this label."""
        if label in self._creating:
            raise ReservationConflict

    async def create(self, row: Reservation, request: SandboxRequest, claim: Claim) -> CreatedSandbox:
        """Claim the row and create its sandbox; raises ReservationConflict, SandboxError."""
        self.raise_if_creating(row.label)
        self._creating.add(row.label)
        try:
            await self._claim(row, claim())
            return await self._create(row, request)
        finally:
            self._creating.discard(row.label)

    async def _claim(self, row: Reservation, claim: Awaitable[bool]) -> None:
        """Claim the row for creation; a caller that is cancelled at that moment releases it again."""
        claimed, cancelled = await shielded_outcome(claim)
        if cancelled is not None and claimed:
            await shielded(self._abandon(row))
        _raise_unless_claimed(claimed=claimed, cancelled=cancelled)

    async def _create(self, row: Reservation, request: SandboxRequest) -> CreatedSandbox:
        """Create the sandbox of a claimed row, with heartbeats."""
        creation = asyncio.create_task(self._create_and_restore(row, request))
        try:
            while not (await asyncio.wait({creation}, timeout=HEARTBEAT_SECONDS))[0]:
                beat = heartbeat(row, self._clock())
                claimed, cancelled = await shielded_outcome(
                    self._reservations.compare_and_set(row, beat, step="sandbox.beat", reason="")
                )
                row = beat if claimed else row
                _raise_unless_claimed(claimed=claimed, cancelled=cancelled)
            sandbox, origin = creation.result()
            done = mark_ready(row, sandbox.id, self._clock())
            row = await shielded(compare_and_set(self._reservations, row, done, "sandbox.record", origin))
        except (SandboxError, OSError, asyncio.CancelledError):
            await shielded(self._cancel_creation(creation, row))
            raise
        finally:
            await cancel_and_wait(creation)
        return CreatedSandbox(row=row, sandbox=sandbox, is_restored=origin == "restored")

    async def _create_and_restore(self, row: Reservation, request: SandboxRequest) -> tuple[Sandbox, str]:
        self._backend.checkpoint("sandbox.acquire.before_create")
        sandbox = await self._backend.create(request)
        self._backend.checkpoint("sandbox.acquire.after_create")
        snapshotter = self._backend.snapshotter
        if snapshotter is None or row.snapshot is None:
            return sandbox, "created"
        restored = await snapshotter.restore(sandbox, row.snapshot)
        self._backend.checkpoint("sandbox.acquire.after_restore")
        return sandbox, "restored" if restored else "created"

    async def _cancel_creation(self, creation: asyncio.Task[tuple[Sandbox, str]], row: Reservation) -> None:
        await cancel_and_wait(creation)
        await self._abandon(row)

    async def _abandon(self, row: Reservation) -> None:
        """Release the row, so that others do not wait for it."""
        if row.snapshot is None:
            await self._reservations.delete(row, step="sandbox.give_up", reason="failed")
        else:
            await self._reservations.compare_and_set(
                row, mark_stopped(row, self._clock()), step="sandbox.give_up", reason="failed"
            )


def _raise_unless_claimed(*, claimed: bool, cancelled: Cancellation) -> None:
    """Raise the caller's cancellation, or ReservationConflict if the row could not be claimed."""
    if cancelled is not None:
        raise cancelled
    if not claimed:
        raise ReservationConflict


async def compare_and_set(
    reservations: ReservationStore, before: Reservation, after: Reservation, step: str, reason: str
) -> Reservation:
    """Replace a row and return the new one; raises ReservationConflict if the row has changed."""
    if not await reservations.compare_and_set(before, after, step=step, reason=reason):
        raise ReservationConflict
    return after
