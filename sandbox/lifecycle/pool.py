"""Reconnect, resume or create the sandboxes of one provider, and keep those of this process open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

import structlog

from sandbox.errors import (
    CommandInterrupted,
    FilesNotStored,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
    SandboxOutdated,
)
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.connector import Connector, OutdatedSandbox
from sandbox.lifecycle.creation import (
    Claim,
    ReservationConflict,
    SandboxCreator,
    compare_and_set,
)
from sandbox.lifecycle.reservations import (
    Reservation,
    ReservationStatus,
    SandboxRequest,
    recreate,
    reserve,
    wake,
)
from sandbox.lifecycle.services import SandboxServices
from sandbox.lifecycle.snapshot_saver import SnapshotSaver
from sandbox.lifecycle.unsaved import UnsavedSandboxes
from sandbox.lifecycle.waits import Wait, reported_wait
from sandbox.model import ExecResult, SandboxId, SandboxSpec
from sandbox.port import Sandbox
from sandbox.workspaces.syncer import WorkspaceSync

log = structlog.get_logger(__name__)

Returned = TypeVar("Returned")
Work = Callable[[Sandbox], Awaitable[Returned]]

RETRY_SECONDS = 0.1
TOUCH_SECONDS = 15.0
"""The most seconds for which the idle timer of a sandbox in use is not reset."""

MAX_OPEN = 4096


@dataclass(slots=True)
class _OpenSandbox:
    """A sandbox that this process has open."""

    spec: SandboxSpec
    sandbox: Sandbox
    boot: int
    touched_at: datetime
    dirty: bool = False
    synced: bool = False
    unsynced: bool = False
    services_restarted: bool = False
    outdated: bool = False
    sync_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Pool:
    """Opens the sandboxes of one provider and keeps those of this process."""

    def __init__(self, backend: Backend, *, timeout: float = 300.0) -> None:
        self.backend = backend
        self._reservations = backend.reservations
        self._clock = backend.clock
        self._timeout = timeout
        self._open: dict[str, _OpenSandbox] = {}
        self._creator = SandboxCreator(backend)
        self._connector = Connector(backend)
        self.unsaved = UnsavedSandboxes(backend.clock)
        self.snapshots = SnapshotSaver(backend, self.unsaved, self.connect)

    async def use(
        self, request: SandboxRequest, work: Work[Returned], *, read_only: bool = False
    ) -> Returned:
        """Run `work` on the sandbox; if the sandbox is gone, repeat exactly once on a new one.

        A command that had begun may have had an effect: CommandInterrupted is raised and nothing is repeated.
        With `read_only`, the work changes no files, so nothing is synced afterwards.
        FilesNotStored is raised with the result if it cannot be synced.
        """
        async with self.backend.locks.shared(request.spec.label):
            with self._connector.using(request.spec.label):
                sandbox = await self.acquire(request)
                gone: SandboxId | None = sandbox.id
                try:
                    return await self._run_work(request, sandbox, work, read_only=read_only)
                except CommandInterrupted:
                    self.evict(request.spec.label)
                    raise
                except SandboxGone as error:
                    self.evict(request.spec.label)
                    gone = None if isinstance(error, SandboxOutdated) else gone
                again = await self.acquire(request, gone=gone)
                return await self._run_work(request, again, work, read_only=read_only)

    async def _run_work(
        self, request: SandboxRequest, sandbox: Sandbox, work: Work[Returned], *, read_only: bool
    ) -> Returned:
        """Run the work, and reset the idle timer before, during and after it."""
        held, sync = self._open.get(request.spec.label), self.backend.sync_of(request.spec)
        if held is not None:
            held.dirty = True
        async with self.keep_alive(request, interval=min(TOUCH_SECONDS, request.spec.idle_timeout / 3)):
            if held is not None and sync is not None:
                await self._sync_once(held, sync)
            if held is not None and not held.services_restarted and request.spec.persistent:
                await self._restart_services(held)
            done = await work(sandbox)
            if sync is not None and not read_only:
                with reported_wait(Wait.SAVING):
                    await _push_after(sync, request.spec, done)
            return done

    async def _sync_once(self, opened: _OpenSandbox, workspace_sync: WorkspaceSync) -> None:
        """Sync the workspace store into the sandbox before its first use in a turn."""
        async with opened.sync_lock:
            if not opened.synced:
                with reported_wait(Wait.LOADING):
                    await workspace_sync.sync(opened.sandbox, opened.spec)
                opened.synced = True
            opened.unsynced = True

    async def _restart_services(self, opened: _OpenSandbox) -> None:
        """Restart lost services once the sandbox is awake or first known to this process."""
        async with opened.sync_lock:
            if opened.services_restarted:
                return
            label = opened.spec.label
            try:
                names = await SandboxServices(
                    sandbox=opened.sandbox, sleeps_with_sandbox=opened.spec.services_sleep_with_sandbox
                ).restart_lost()
            except SandboxGone:
                raise
            except SandboxError as error:
                log.warning("sandbox.services_restart_failed", label=label, error=str(error))
            else:
                if names:
                    log.info("sandbox.services_restarted", label=label, services=names)
            opened.services_restarted = True

    def mark_stale(self, label: str) -> None:
        """Mark the sandbox stale at the start of a turn, so that later changes of the store are synced in."""
        held = self._open.get(label)
        if held is not None:
            held.synced = False

    async def sync_back(self, request: SandboxRequest) -> None:
        """Sync changed files to the workspace store if the sandbox was used since; raises SandboxError."""
        held = self._open.get(request.spec.label)
        if held is not None and held.unsynced:
            await self.sync(held.sandbox, request.spec)

    async def sync(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Sync the workspace store and a sandbox in both directions; raises SandboxError."""
        workspace_sync = self.backend.sync_of(spec)
        if workspace_sync is None:
            return
        async with self.backend.locks.shared(spec.label):
            held = self._open.get(spec.label)
            async with held.sync_lock if held is not None else asyncio.Lock():
                with reported_wait(Wait.SAVING):
                    await workspace_sync.sync(sandbox, spec)
                if held is not None:
                    held.unsynced = False

    @asynccontextmanager
    async def keep_alive(self, request: SandboxRequest, *, interval: float) -> AsyncIterator[None]:
        """Reset the idle timer of an open sandbox; a block shorter than the interval needs no task."""
        heartbeats: list[asyncio.Task[None]] = []

        def begin() -> None:
            heartbeats.append(asyncio.create_task(self._keep_alive_loop(request, interval)))

        wait = 0.0 if self._find_untouched(request, interval) else interval
        timer = asyncio.get_running_loop().call_later(wait, begin)
        try:
            yield
        finally:
            timer.cancel()
            for task in heartbeats:
                await self._end_heartbeats(request, task)

    async def _end_heartbeats(self, request: SandboxRequest, heartbeats: asyncio.Task[None]) -> None:
        heartbeats.cancel()
        await asyncio.wait({heartbeats})
        if not heartbeats.cancelled() and (error := heartbeats.exception()) is not None:
            log.warning("sandbox.keep_alive_failed", label=request.spec.label, error=str(error))

    async def _keep_alive_loop(self, request: SandboxRequest, interval: float) -> None:
        while True:
            held = self._find_untouched(request, interval)
            if held is not None:
                await self._touch(request, held, self._clock())
            await asyncio.sleep(interval)

    def _find_untouched(self, request: SandboxRequest, interval: float) -> _OpenSandbox | None:
        """Return the open sandbox if its idle timer was not reset for an interval; the clock may jump."""
        held = self._open.get(request.spec.label)
        is_untouched = held is not None and abs((self._clock() - held.touched_at).total_seconds()) >= interval
        return held if is_untouched else None

    async def _touch(self, request: SandboxRequest, opened: _OpenSandbox, now: datetime) -> None:
        opened.touched_at = now
        await self._reservations.touch(request.spec.label, request.owner.conversation, now)
        try:
            await opened.sandbox.keep_alive(request.spec.idle_timeout)
        except SandboxError as error:
            log.warning("sandbox.keep_alive_failed", label=request.spec.label, error=str(error))

    async def acquire(self, request: SandboxRequest, *, gone: SandboxId | None = None) -> Sandbox:
        """Return the running sandbox of a label: the open one, the reserved one, or a new one.

        The caller holds the lock. `gone` is a sandbox that it knows must not be used. Raises SandboxError.
        """
        with reported_wait(Wait.SANDBOX):
            return await self._acquire(request, gone)

    async def _acquire(self, request: SandboxRequest, gone: SandboxId | None) -> Sandbox:
        deadline = asyncio.get_running_loop().time() + self._timeout
        while asyncio.get_running_loop().time() < deadline:
            try:
                return await self._try_acquire(request, gone)
            except ReservationConflict:
                await asyncio.sleep(RETRY_SECONDS)
        raise ProviderUnreachable("another replica is creating the sandbox and does not finish: try again")

    async def _try_acquire(self, request: SandboxRequest, gone: SandboxId | None) -> Sandbox:
        """Take the next step towards a running sandbox; raises ReservationConflict if another process did."""
        self._creator.raise_if_creating(request.spec.label)
        row = await self._reservations.get(request.spec.label)
        if row is None:
            fresh = reserve(request, self._clock())
            return await self._claim_and_create(fresh, request, partial(self._reservations.add, fresh))
        if row.status is ReservationStatus.CREATING:
            self._creator.raise_if_creating(row.label)
            log.warning("sandbox.creation_reset", label=row.label, since=row.changed_at.isoformat())
            return await self._recreate(row, request, "reset")
        if row.sandbox is None or row.sandbox == gone:
            return await self._recreate(row, request, "gone" if gone else "cold")
        try:
            return await self._connect_reserved(row, row.sandbox, request)
        except SandboxGone:
            self.evict(row.label)
        return await self._recreate(row, request, "gone")

    async def _connect_reserved(
        self, row: Reservation, sandbox_id: SandboxId, request: SandboxRequest
    ) -> Sandbox:
        held = self._open.get(row.label)
        is_same = held is not None and held.spec == request.spec and held.boot == row.boot
        if held is not None and is_same and not held.outdated:
            sandbox, outdated = held.sandbox, False
        else:
            found = await self._connector.connect(row, sandbox_id, request)
            if isinstance(found, OutdatedSandbox):
                self.evict(row.label)
                return await self._recreate(found.row, request, "changed")
            is_kept = held is not None and is_same and found.is_outdated
            sandbox, outdated = held.sandbox if held and is_kept else found.sandbox, found.is_outdated
        if row.paused or row.active_since is None:
            if held is not None:
                held.services_restarted = False
            row = await compare_and_set(
                self._reservations, row, wake(row, request, self._clock()), "sandbox.wake", "woken"
            )
        self._set_open(row, request.spec, sandbox, outdated=outdated)
        return sandbox

    def _set_open(
        self,
        row: Reservation,
        spec: SandboxSpec,
        sandbox: Sandbox,
        *,
        services_restarted: bool = False,
        outdated: bool = False,
    ) -> None:
        held = self._open.get(row.label)
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        if held is None or held.sandbox is not sandbox:
            dirty = held.dirty if held else False
            services_restarted = services_restarted or (
                held is not None and held.services_restarted and held.boot == row.boot
            )
            self._open[row.label] = _OpenSandbox(
                spec=spec,
                sandbox=sandbox,
                boot=row.boot,
                touched_at=row.used_at,
                dirty=dirty,
                services_restarted=services_restarted,
                outdated=outdated,
            )

    async def _recreate(self, row: Reservation, request: SandboxRequest, reason: str) -> Sandbox:
        fresh = recreate(row, request, self._clock())
        claim = partial(self._reservations.compare_and_set, row, fresh, step="sandbox.remake", reason=reason)
        return await self._claim_and_create(fresh, request, claim)

    async def _claim_and_create(self, row: Reservation, request: SandboxRequest, claim: Claim) -> Sandbox:
        created = await self._creator.create(row, request, claim)
        has_no_services = not created.is_restored and row.boot == 0
        self._set_open(created.row, request.spec, created.sandbox, services_restarted=has_no_services)
        return created.sandbox

    def evict(self, label: str) -> None:
        """Close the open sandbox of this label; the provider's object stays."""
        self._open.pop(label, None)

    def get_open(self, label: str) -> Sandbox | None:
        """Return the sandbox that this process has open."""
        return held.sandbox if (held := self._open.get(label)) else None

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox by its id, whatever its reservation and the spec say; raises SandboxGone."""
        held = self._open.get(spec.label)
        if held is not None and held.sandbox.id == sandbox_id:
            return held.sandbox
        return await self.backend.connect(sandbox_id, spec)

    def plan_snapshot(self, request: SandboxRequest, *, changed: bool = False) -> None:
        """Make a snapshot due if the sandbox is to have any, and was used or `changed` since the last one."""
        held = self._open.get(request.spec.label)
        if held is None or self.backend.snapshotter is None or not request.snapshots:
            return
        if held.dirty or changed:
            held.dirty = False
            self.unsaved.add_used(request)


async def _push_after(sync: WorkspaceSync, spec: SandboxSpec, done: object) -> None:
    """Sync what the work changed; raises FilesNotStored, because the work itself was done.

    If the sandbox is gone, a command is not repeated for its files; a file is written again.
    """
    try:
        await sync.push(spec)
    except SandboxGone as error:
        if isinstance(done, ExecResult):
            raise CommandInterrupted from error
        raise
    except SandboxError as error:
        raise FilesNotStored(error, done) from error
