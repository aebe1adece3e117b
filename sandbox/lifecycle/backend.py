"""One provider with the stores and locks that its sandboxes need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime

from sandbox.errors import SandboxOutdated
from sandbox.lifecycle.locks import SandboxLocks
from sandbox.lifecycle.reservations import Reservation, ReservationStore, SandboxRequest, now_utc
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.model import SandboxId, SandboxSpec
from sandbox.port import Provider, Sandbox
from sandbox.workspaces.syncer import WorkspaceSync

Starting = Callable[[str], AbstractAsyncContextManager[None]]
"""Wait until a sandbox of this account may start, and hold its place during the block."""


async def _count_none(_row: Reservation) -> int:
    """Return 0: nothing starts jobs here."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One provider with its reservation store, locks and snapshot store. `checkpoint` passes fault points.

    `workspace_sync` syncs files if the provider does not mount the workspace store. `starting` holds one of
    the places that the accounts share for creating sandboxes of this provider: no other backend has it, so a
    provider that hangs delays only its own sandboxes. `external_sync` syncs files with external sandboxes,
    which mount nothing. `count_jobs` returns how many jobs run in a row's sandbox: it is not replaced.
    """

    provider: Provider
    reservations: ReservationStore
    locks: SandboxLocks = field(default_factory=SandboxLocks)
    snapshotter: Snapshotter | None = None
    workspace_sync: WorkspaceSync | None = None
    external_sync: WorkspaceSync | None = None
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)
    clock: Callable[[], datetime] = now_utc
    starting: Starting = field(default=lambda _account: nullcontext())
    count_jobs: Callable[[Reservation], Awaitable[int]] = _count_none

    async def create(self, request: SandboxRequest) -> Sandbox:
        """Create a sandbox once it is its account's turn."""
        async with self.starting(request.owner.account):
            return await self.provider.create(request.spec)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox as it was created, whatever the spec says now; raises SandboxGone."""
        return await self.provider.connect(sandbox_id, replace(spec, as_created=True))

    async def is_outdated(self, sandbox_id: SandboxId, spec: SandboxSpec) -> bool:
        """Return whether an existing sandbox has other settings than the spec; raises SandboxError."""
        try:
            await self.provider.connect(sandbox_id, spec)
        except SandboxOutdated:
            return True
        return False

    def sync_of(self, spec: SandboxSpec) -> WorkspaceSync | None:
        """Return how the files of a sandbox are synced; None if it mounts the workspace store."""
        return self.external_sync if spec.external else self.workspace_sync
