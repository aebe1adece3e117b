"""A pool of sandboxes on a register and a provider in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize
from memory_reservations import MemoryReservations, MemorySandboxLocks
from memory_sandboxes import MemoryProvider
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.locks import SandboxLocks
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import SandboxRequest
from sandbox.model import SandboxSpec

SPEC = SandboxSpec(label="dovecote-here-one", namespace="space", persistent=True)
OWNER = Owner(account="acc_1", scope=Scope.SESSION, conversation="cnv_1")
REQUEST = SandboxRequest(spec=SPEC, owner=OWNER, provider="memory")


@dataclass(kw_only=True)
class PoolHarness:
    """A pool on a register and a provider in memory, with a clock of its own."""

    provider: MemoryProvider = field(default_factory=MemoryProvider)
    reservations: MemoryReservations = field(default_factory=MemoryReservations)
    lock_store: MemorySandboxLocks = field(default_factory=MemorySandboxLocks)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)
    starts: FairGate = field(default_factory=lambda: FairGate(PoolSize(places=64)))

    def backend(self) -> Backend:
        """Return the backend of a pool."""
        return Backend(
            provider=self.provider,
            reservations=self.reservations,
            locks=SandboxLocks(self.lock_store, timeout=1.0),
            checkpoint=self.checkpoint,
            clock=lambda: self.now,
            starting=self.starts.hold,
        )

    def pool(self) -> Pool:
        """Return a pool as another process would have one."""
        return Pool(self.backend(), timeout=1.0)
