"""A register of sandboxes in memory, and leases that a test can take away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sandbox.lifecycle.locks import Leases
from sandbox.lifecycle.reservations import Register, Reservation


class MemoryRegister(Register):
    """Rows in a dictionary; `told` gathers (step, why) of every change."""

    def __init__(self) -> None:
        self.rows: dict[str, Reservation] = {}
        self.told: list[tuple[str, str]] = []

    async def find(self, label: str) -> Reservation | None:
        """Return the row of a label."""
        return self.rows.get(label)

    async def add(self, row: Reservation) -> bool:
        """Insert a row."""
        return self.rows.setdefault(row.label, row) is row

    async def swap(self, before: Reservation, after: Reservation, *, step: str, why: str) -> bool:
        """Change a row that has not moved on."""
        now = self.rows.get(before.label)
        if now is None or now.lock_version != before.lock_version:
            return False
        self.rows[before.label] = after
        self.told.append((step, why))
        return True

    async def drop(self, row: Reservation, *, step: str, why: str) -> bool:
        """Delete a row that has not moved on."""
        now = self.rows.get(row.label)
        if now is None or now.lock_version != row.lock_version:
            return False
        del self.rows[row.label]
        self.told.append((step, why))
        return True

    async def touch(self, label: str, conversation: str, now: datetime) -> None:
        """Reset the idle timer."""
        if label in self.rows:
            row = self.rows[label]
            self.rows[label] = replace(row, used_at=now, owner=replace(row.owner, conversation=conversation))

    async def every(self) -> Sequence[Reservation]:
        """Return all rows."""
        return list(self.rows.values())


class MemoryLeases(Leases):
    """Leases that end when they are left, or taken away."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.fences = 0

    async def take(self, label: str, *, ttl: float) -> int | None:
        """Take a free lease."""
        del ttl
        if label in self.held:
            return None
        self.fences += 1
        self.held[label] = self.fences
        return self.fences

    async def renew(self, label: str, fence: int, *, ttl: float) -> bool:
        """Say whether it is still held."""
        del ttl
        return self.held.get(label) == fence

    async def leave(self, label: str, fence: int) -> None:
        """Give it up."""
        if self.held.get(label) == fence:
            del self.held[label]
