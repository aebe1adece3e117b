"""The register of sandboxes: one row per label, changed by compare-and-set on `lock_version`.

             a               b
    (none) ─────▶ creating ─────▶ ready ◀──────▶ ready, paused
       ▲            ▲  │ c          │  ▲    d, e        │
       │            │  └─ (again)   │  │                │
       │            │ f             │ g│f               │ g
       │ h          └────── ready, without a sandbox ◀──┘
       └──────────────────────────────┘

a reserved by whoever came first · b the provider's object is there and known · c `creating` for longer than
anybody needs: reset · d suspended · e woken · f somebody needs it: made anew (boot + 1), restored from its
snapshot · g gone, expired or given up · h dropped: deleted, or nothing is left to be restored.

Seconds are counted from b, e or f to d, g or h.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from sandbox.labels import Owner
from sandbox.model import SandboxId, SandboxSpec

STUCK_SECONDS = 50.0
"""Seconds after which a row that is `creating`, and that nobody asks for, is given up."""


class ReservationStatus(StrEnum):
    """Where a reservation stands."""

    CREATING = "creating"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A row of the register. `boot` counts the machines there have been; `snapshot` names the newest one.

    `active_since` is None while the sandbox costs nothing; `seconds` are those of the stretches before.
    """

    label: str
    owner: Owner
    provider: str
    persistent: bool
    status: ReservationStatus
    sandbox: SandboxId | None = None
    paused: bool = False
    lock_version: int = 1
    boot: int = 0
    seconds: float = 0.0
    active_since: datetime | None = None
    made_at: datetime | None = None
    used_at: datetime
    changed_at: datetime
    idle_timeout: float
    max_lifetime: float
    snapshot: str | None = None
    snapshot_at: datetime | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether there is no machine, and nobody is making one."""
        return self.status is ReservationStatus.READY and self.sandbox is None

    def seconds_at(self, now: datetime) -> float:
        """Return all seconds it has been active until `now`."""
        running = (now - self.active_since).total_seconds() if self.active_since else 0.0
        return self.seconds + max(running, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """What somebody asks the pool for: the spec (its label is the key) and whose it is."""

    spec: SandboxSpec
    owner: Owner
    provider: str
    snapshots: bool = True


class ReservationStore(Protocol):
    """The rows. Every change is one transaction with the events that tell of it and the seconds it ends."""

    @abstractmethod
    async def get(self, label: str) -> Reservation | None:
        """Return the row of a label."""

    @abstractmethod
    async def add(self, row: Reservation) -> bool:
        """Insert a row; False when the label has one."""

    @abstractmethod
    async def compare_and_set(
        self, before: Reservation, after: Reservation, *, step: str, reason: str
    ) -> bool:
        """Write `after` where `before` stands with its lock_version; False when it has moved on.

        `step` names the fault points around the commit; `why` is told with the event and the seconds.
        """

    @abstractmethod
    async def delete(self, row: Reservation, *, step: str, reason: str) -> bool:
        """Delete the row if it stands as it was read."""

    @abstractmethod
    async def touch(self, label: str, conversation: str, now: datetime) -> None:
        """Reset the idle timer, and remember whose conversation it was."""

    @abstractmethod
    async def list_all(self) -> Sequence[Reservation]:
        """Return all rows."""


def reserve(request: SandboxRequest, now: datetime) -> Reservation:
    """Return the row of somebody who came first (a)."""
    return Reservation(
        label=request.spec.label,
        owner=request.owner,
        provider=request.provider,
        persistent=request.spec.persistent,
        status=ReservationStatus.CREATING,
        used_at=now,
        changed_at=now,
        idle_timeout=request.spec.idle_timeout,
        max_lifetime=request.spec.max_lifetime,
    )


def _bump_version(row: Reservation, now: datetime) -> Reservation:
    return replace(row, lock_version=row.lock_version + 1, changed_at=now)


def _stop_clock(row: Reservation, now: datetime) -> Reservation:
    return replace(_bump_version(row, now), seconds=row.seconds_at(now), active_since=None)


def heartbeat(row: Reservation, now: datetime) -> Reservation:
    """Return the row of somebody who is still making the sandbox."""
    return _bump_version(row, now)


def recreate(row: Reservation, request: SandboxRequest, now: datetime) -> Reservation:
    """Return the row of somebody who makes the sandbox (again): c and f."""
    return replace(
        _stop_clock(row, now),
        owner=request.owner,
        status=ReservationStatus.CREATING,
        sandbox=None,
        paused=False,
        made_at=None,
        used_at=now,
        idle_timeout=request.spec.idle_timeout,
        max_lifetime=request.spec.max_lifetime,
    )


def mark_ready(row: Reservation, sandbox: SandboxId, now: datetime) -> Reservation:
    """Return the row with the provider's object known (b)."""
    return replace(
        _bump_version(row, now),
        status=ReservationStatus.READY,
        sandbox=sandbox,
        boot=row.boot + 1,
        paused=False,
        active_since=now,
        made_at=now,
        used_at=now,
    )


def wake(row: Reservation, request: SandboxRequest, now: datetime) -> Reservation:
    """Return the row of a sandbox that was suspended (e)."""
    return replace(_bump_version(row, now), owner=request.owner, paused=False, active_since=now, used_at=now)


def suspend(row: Reservation, now: datetime) -> Reservation:
    """Return the row of a sandbox that is put to sleep (d)."""
    return replace(_stop_clock(row, now), paused=True)


def mark_stopped(row: Reservation, now: datetime) -> Reservation:
    """Return the row of which no machine is left (g)."""
    return replace(
        _stop_clock(row, now), status=ReservationStatus.READY, sandbox=None, paused=False, made_at=None
    )


def set_snapshot(row: Reservation, snapshot: str, now: datetime) -> Reservation:
    """Return the row with a new snapshot."""
    return replace(_bump_version(row, now), snapshot=snapshot, snapshot_at=now)


def now_utc() -> datetime:
    """Return the time, as rows hold it."""
    return datetime.now(UTC)
