"""Reservations of sandboxes: one row per label, changed by compare-and-set on `lock_version`.

             a               b
    (none) ─────▶ creating ─────▶ ready ◀──────▶ ready, paused
       ▲            ▲  │ c          │  ▲    d, e        │
       │            │  └─ (again)   │  │                │
       │            │ f             │ g│f               │ g
       │ h          └────── ready, without a sandbox ◀──┘
       └──────────────────────────────┘

a reserved by the first caller · b the provider's object exists and is recorded · c `creating` for too long:
reset · d suspended · e resumed · f needed again: created again (boot + 1), restored from its snapshot ·
g gone, expired or abandoned · h deleted, or nothing is left to restore.

Active seconds are counted from b, e or f until d, g or h.
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
"""Seconds after which a row that is `creating` without heartbeats is abandoned."""


class ReservationStatus(StrEnum):
    """The status of a reservation."""

    CREATING = "creating"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation row. `boot` counts the instances so far; `snapshot` names the newest snapshot.

    `active_since` is None while the sandbox is not billed; `seconds` sums the earlier active periods.
    `snapshot_at` is when the newest snapshot was taken, or was found to equal what the sandbox holds.
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
        """Return whether there is no instance and none is being created."""
        return self.status is ReservationStatus.READY and self.sandbox is None

    @property
    def is_unsaved(self) -> bool:
        """Return whether a reserved instance was used since its newest snapshot."""
        is_saved = self.snapshot_at is not None and self.snapshot_at >= self.used_at
        return self.persistent and self.sandbox is not None and not is_saved

    def seconds_at(self, now: datetime) -> float:
        """Return the total active seconds until `now`."""
        running = (now - self.active_since).total_seconds() if self.active_since else 0.0
        return self.seconds + max(running, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """A request to the pool: the spec (its label is the key) and its owner."""

    spec: SandboxSpec
    owner: Owner
    provider: str
    snapshots: bool = True


class ReservationStore(Protocol):
    """Stores the reservations. Each change is one transaction with its events and its usage in seconds.

    Each method raises DatabaseUnavailable if the database does not answer; nothing was changed then.
    """

    @abstractmethod
    async def get(self, label: str) -> Reservation | None:
        """Return the reservation of a label, or None."""

    @abstractmethod
    async def add(self, row: Reservation) -> bool:
        """Insert a reservation; return False if the label has one."""

    @abstractmethod
    async def compare_and_set(
        self, before: Reservation, after: Reservation, *, step: str, reason: str
    ) -> bool:
        """Replace `before` by `after` if its lock_version is unchanged; return False otherwise.

        `step` names the fault points around the commit; `reason` is recorded with the event and the usage.
        """

    @abstractmethod
    async def delete(self, row: Reservation, *, step: str, reason: str) -> bool:
        """Delete the reservation if it is unchanged since it was read; return whether it was."""

    @abstractmethod
    async def touch(self, label: str, conversation: str, now: datetime) -> None:
        """Reset the idle timer and record the conversation; do nothing for an unknown label."""

    @abstractmethod
    async def list_all(self) -> Sequence[Reservation]:
        """Return all reservations."""

    @abstractmethod
    async def list_live(self, *, ending: str) -> Sequence[Reservation]:
        """Return those with an instance or in creation, and the others whose label ends with `ending`."""

    @abstractmethod
    async def list_unsaved(self, provider: str) -> Sequence[Reservation]:
        """Return those of a provider whose instance was used since its newest snapshot (`is_unsaved`)."""


def reserve(request: SandboxRequest, now: datetime) -> Reservation:
    """Return the first row of a label, in the state creating (a)."""
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
    """Return the row with a heartbeat of its creator."""
    return _bump_version(row, now)


def recreate(row: Reservation, request: SandboxRequest, now: datetime) -> Reservation:
    """Return the row for a new creation: transitions c and f."""
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
    """Return the row with the provider's object recorded (b)."""
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
    """Return the row of a resumed sandbox (e)."""
    return replace(_bump_version(row, now), owner=request.owner, paused=False, active_since=now, used_at=now)


def suspend(row: Reservation, now: datetime) -> Reservation:
    """Return the row of a suspended sandbox (d)."""
    return replace(_stop_clock(row, now), paused=True)


def mark_stopped(row: Reservation, now: datetime) -> Reservation:
    """Return the row without an instance (g)."""
    return replace(
        _stop_clock(row, now), status=ReservationStatus.READY, sandbox=None, paused=False, made_at=None
    )


def set_snapshot(row: Reservation, snapshot: str, now: datetime, *, packed_at: datetime) -> Reservation:
    """Return the row with a new snapshot, which holds what was in the sandbox at `packed_at`."""
    return replace(_bump_version(row, now), snapshot=snapshot, snapshot_at=packed_at)


def now_utc() -> datetime:
    """Return the current time with the precision that rows store."""
    return datetime.now(UTC)
