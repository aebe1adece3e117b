"""What the ways to a provider's sandboxes stand on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from sandbox.lifecycle.locks import Guard
from sandbox.lifecycle.reservations import Register, now_utc
from sandbox.lifecycle.snapshotter import Keeper
from sandbox.port import Provider
from sandbox.workspaces.syncer import Carrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """One provider with its rows, its guard and its snapshots. `checkpoint` passes fault points.

    `carrier`: where the provider does not mount the workspace store, what brings files there and back.
    """

    provider: Provider
    register: Register
    guard: Guard = field(default_factory=Guard)
    keeper: Keeper | None = None
    carrier: Carrier | None = None
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)
    clock: Callable[[], datetime] = now_utc
