"""One provider with the stores and locks that its sandboxes need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from sandbox.lifecycle.locks import SandboxLocks
from sandbox.lifecycle.reservations import ReservationStore, now_utc
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.port import Provider
from sandbox.workspaces.syncer import WorkspaceSync


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One provider with its reservation store, locks and snapshot store. `checkpoint` passes fault points.

    `workspace_sync` syncs files if the provider does not mount the workspace store.
    """

    provider: Provider
    reservations: ReservationStore
    locks: SandboxLocks = field(default_factory=SandboxLocks)
    snapshotter: Snapshotter | None = None
    workspace_sync: WorkspaceSync | None = None
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)
    clock: Callable[[], datetime] = now_utc
