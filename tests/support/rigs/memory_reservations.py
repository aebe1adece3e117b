"""Reservations of sandboxes in memory, and locks that a test can revoke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sandbox.lifecycle.locks import LockStore
from sandbox.lifecycle.reservations import Reservation, ReservationStore


class MemoryReservations(ReservationStore):
    """Rows in a dictionary; `changes` records (step, reason) of every change."""

    def __init__(self) -> None:
        self.rows: dict[str, Reservation] = {}
        self.changes: list[tuple[str, str]] = []

    async def get(self, label: str) -> Reservation | None:
        """Return the row of a label."""
        return self.rows.get(label)

    async def add(self, row: Reservation) -> bool:
        """Insert a row."""
        return self.rows.setdefault(row.label, row) is row

    async def compare_and_set(
        self, before: Reservation, after: Reservation, *, step: str, reason: str
    ) -> bool:
        """Change a row that has not moved on."""
        now = self.rows.get(before.label)
        if now is None or now.lock_version != before.lock_version:
            return False
        self.rows[before.label] = after
        self.changes.append((step, reason))
        return True

    async def delete(self, row: Reservation, *, step: str, reason: str) -> bool:
        """Delete a row that has not moved on."""
        now = self.rows.get(row.label)
        if now is None or now.lock_version != row.lock_version:
            return False
        del self.rows[row.label]
        self.changes.append((step, reason))
        return True

    async def touch(self, label: str, conversation: str, now: datetime) -> None:
        """Reset the idle timer."""
        if label in self.rows:
            row = self.rows[label]
            self.rows[label] = replace(row, used_at=now, owner=replace(row.owner, conversation=conversation))

    async def list_all(self) -> Sequence[Reservation]:
        """Return all rows."""
        return list(self.rows.values())

    async def list_live(self, *, ending: str) -> Sequence[Reservation]:
        """Return the rows with an instance or in creation, and others whose label ends with `ending`."""
        return [row for row in self.rows.values() if not row.is_stopped or row.label.endswith(ending)]

    async def list_unsaved(self, provider: str) -> Sequence[Reservation]:
        """Return the rows of a provider whose instance was used since its newest snapshot."""
        return [row for row in self.rows.values() if row.provider == provider and row.is_unsaved]


class MemorySandboxLocks(LockStore):
    """Locks that end when they are released or revoked."""

    def __init__(self) -> None:
        self.holders: dict[str, int] = {}
        self.fences = 0

    async def acquire(self, label: str, *, ttl: float) -> int | None:
        """Take a free lease."""
        del ttl
        if label in self.holders:
            return None
        self.fences += 1
        self.holders[label] = self.fences
        return self.fences

    async def renew(self, label: str, fence: int, *, ttl: float) -> bool:
        """Say whether it is still held."""
        del ttl
        return self.holders.get(label) == fence

    async def release(self, label: str, fence: int) -> None:
        """Give it up."""
        if self.holders.get(label) == fence:
            del self.holders[label]
