"""Getting hold of sandboxes: reconnect, wake or create, by compare-and-set; and letting go of them.

Whoever moves a row to `creating` makes the sandbox; everybody else reads the row again until it is ready. The
guard lets one process at a time come here, so that a row which is `creating`, and not by this one, is that of
one that died: it is taken over at once. The provider's object carries the row's label before anybody uses it,
so that a crash at any point leaves either such a row, or an object that is no row's, which a sweep finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

import structlog

from sandbox.errors import ProviderUnreachable, SandboxError, SandboxGone
from sandbox.exec.shielded import Cancellation, shielded, shielded_outcome
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.reservations import (
    Reservation,
    ReservationStatus,
    SandboxRequest,
    heartbeat,
    mark_ready,
    mark_stopped,
    recreate,
    reserve,
    set_snapshot,
    wake,
)
from sandbox.lifecycle.services import SandboxServices
from sandbox.model import SandboxId, SandboxSpec
from sandbox.port import Sandbox
from sandbox.workspaces.syncer import WorkspaceSync

log = structlog.get_logger(__name__)

Returned = TypeVar("Returned")
Work = Callable[[Sandbox], Awaitable[Returned]]
Claim = Callable[[], Awaitable[bool]]

RETRY_SECONDS = 0.1
HEARTBEAT_SECONDS = 8.0
"""Seconds between signs of life of somebody who is making a sandbox; less than half of STUCK."""
TOUCH_SECONDS = 15.0
"""Seconds for which the idle timer of a sandbox in use is left alone, at most."""

MAX_OPEN = 4096


class ReservationConflict(Exception):
    """Somebody else changed the row first; it is read again."""


@dataclass(slots=True)
class _OpenSandbox:
    """A sandbox this process has open."""

    spec: SandboxSpec
    sandbox: Sandbox
    boot: int
    touched_at: datetime
    dirty: bool = False
    synced: bool = False
    unsynced: bool = False
    services_restarted: bool = False
    sync_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Pool:
    """The sandboxes of one provider that this process has open, and the way to them."""

    def __init__(self, backend: Backend, *, timeout: float = 300.0) -> None:
        self.backend = backend
        self._reservations = backend.reservations
        self._clock = backend.clock
        self._timeout = timeout
        self._open: dict[str, _OpenSandbox] = {}
        self._creating: set[str] = set()

    async def use(
        self, request: SandboxRequest, work: Work[Returned], *, read_only: bool = False
    ) -> Returned:
        """Run `work` on the sandbox; when that turns out to be gone, exactly once more on a new one.

        `reads`: it changes no files, so that nobody looks for such.
        """
        async with self.backend.locks.shared(request.spec.label):
            sandbox = await self.acquire(request)
            try:
                return await self._run_work(request, sandbox, work, read_only=read_only)
            except SandboxGone:
                self.evict(request.spec.label)
            again = await self.acquire(request, gone=sandbox.id)
            return await self._run_work(request, again, work, read_only=read_only)

    async def _run_work(
        self, request: SandboxRequest, sandbox: Sandbox, work: Work[Returned], *, read_only: bool
    ) -> Returned:
        """Work, with the idle timer reset before, now and then meanwhile, and after."""
        held = self._open.get(request.spec.label)
        if held is not None:
            held.dirty = True
        async with self.keep_alive(request, interval=min(TOUCH_SECONDS, request.spec.idle_timeout / 3)):
            if held is not None and self.backend.workspace_sync is not None:
                await self._sync_once(held, self.backend.workspace_sync)
            if held is not None and not held.services_restarted and request.spec.persistent:
                await self._restart_services(held)
            done = await work(sandbox)
            if self.backend.workspace_sync is not None and not read_only:
                await self.backend.workspace_sync.push(request.spec)
            return done

    async def _sync_once(self, opened: _OpenSandbox, workspace_sync: WorkspaceSync) -> None:
        """Before a sandbox is first used in a turn, have it hold what the workspace store holds."""
        async with opened.sync_lock:
            if not opened.synced:
                await workspace_sync.sync(opened.sandbox, opened.spec)
                opened.synced = True
            opened.unsynced = True

    async def _restart_services(self, opened: _OpenSandbox) -> None:
        """Once a machine is awake, or first known to this process, start again the services that it lost."""
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
        """A turn begins: what was written to the workspace store since is to be carried in."""
        held = self._open.get(label)
        if held is not None:
            held.synced = False

    async def sync_back(self, request: SandboxRequest) -> None:
        """Carry what commands changed to the workspace store, when the sandbox was used since the last time.

        Raises SandboxError.
        """
        held = self._open.get(request.spec.label)
        if held is not None and held.unsynced:
            await self.sync(held.sandbox, request.spec)

    async def sync(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Bring to the workspace store and to a sandbox what changed in the other; raises SandboxError."""
        if self.backend.workspace_sync is None:
            return
        async with self.backend.locks.shared(spec.label):
            held = self._open.get(spec.label)
            async with held.sync_lock if held is not None else asyncio.Lock():
                await self.backend.workspace_sync.sync(sandbox, spec)
                if held is not None:
                    held.unsynced = False

    @asynccontextmanager
    async def keep_alive(self, request: SandboxRequest, *, interval: float) -> AsyncIterator[None]:
        """Keep an open sandbox from falling idle."""
        attending = asyncio.create_task(self._keep_alive_loop(request, interval))
        try:
            yield
        finally:
            attending.cancel()
            await asyncio.wait({attending})
            if not attending.cancelled() and (error := attending.exception()) is not None:
                log.warning("sandbox.keep_alive_failed", label=request.spec.label, error=str(error))

    async def _keep_alive_loop(self, request: SandboxRequest, interval: float) -> None:
        while True:
            held = self._open.get(request.spec.label)
            now = self._clock()
            if held is not None and (now - held.touched_at).total_seconds() >= interval:
                await self._touch(request, held, now)
            await asyncio.sleep(interval)

    async def _touch(self, request: SandboxRequest, opened: _OpenSandbox, now: datetime) -> None:
        opened.touched_at = now
        await self._reservations.touch(request.spec.label, request.owner.conversation, now)
        try:
            await opened.sandbox.keep_alive(request.spec.idle_timeout)
        except SandboxError as error:
            log.warning("sandbox.keep_alive_failed", label=request.spec.label, error=str(error))

    async def acquire(self, request: SandboxRequest, *, gone: SandboxId | None = None) -> Sandbox:
        """Return the sandbox of a label, awake: the open one, the known one, or a new one.

        The caller has been let through by the guard. `gone` is one of which it knows that it is not to be
        used. Raises SandboxError.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        while asyncio.get_running_loop().time() < deadline:
            try:
                return await self._try_acquire(request, gone)
            except ReservationConflict:
                await asyncio.sleep(RETRY_SECONDS)
        raise ProviderUnreachable("the sandbox is being made by somebody who does not come to an end")

    async def _try_acquire(self, request: SandboxRequest, gone: SandboxId | None) -> Sandbox:
        """Do the next thing that brings us nearer; raises Lost when somebody else is at it."""
        if request.spec.label in self._creating:
            raise ReservationConflict
        row = await self._reservations.get(request.spec.label)
        if row is None:
            fresh = reserve(request, self._clock())
            return await self._claim_and_create(fresh, request, partial(self._reservations.add, fresh))
        if row.status is ReservationStatus.CREATING:
            if row.label in self._creating:
                raise ReservationConflict
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
        if held is not None and held.spec == request.spec and held.boot == row.boot:
            sandbox = held.sandbox
        else:
            sandbox = await self.backend.provider.connect(sandbox_id, request.spec)
        if row.paused or row.active_since is None:
            if held is not None:
                held.services_restarted = False
            row = await self._compare_and_set(row, wake(row, request, self._clock()), "sandbox.wake", "woken")
        self._set_open(row, request.spec, sandbox)
        return sandbox

    def _set_open(
        self, row: Reservation, spec: SandboxSpec, sandbox: Sandbox, *, services_restarted: bool = False
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
            )

    async def _compare_and_set(
        self, before: Reservation, after: Reservation, step: str, reason: str
    ) -> Reservation:
        if not await self._reservations.compare_and_set(before, after, step=step, reason=reason):
            raise ReservationConflict
        return after

    async def _recreate(self, row: Reservation, request: SandboxRequest, reason: str) -> Sandbox:
        fresh = recreate(row, request, self._clock())
        claim = partial(self._reservations.compare_and_set, row, fresh, step="sandbox.remake", reason=reason)
        return await self._claim_and_create(fresh, request, claim)

    async def _claim_and_create(self, row: Reservation, request: SandboxRequest, claim: Claim) -> Sandbox:
        """Be the one in this process who makes the sandbox of a label; raises Lost when another is."""
        if row.label in self._creating:
            raise ReservationConflict
        self._creating.add(row.label)
        try:
            await self._claim(row, claim())
            return await self._create(row, request)
        finally:
            self._creating.discard(row.label)

    async def _claim(self, row: Reservation, claim: Awaitable[bool]) -> None:
        """Take it upon us to make the sandbox; who is stopped at that moment lets go of the row again."""
        taken, stopped = await shielded_outcome(claim)
        if stopped is not None and taken:
            await shielded(self._abandon(row))
        _raise_unless_claimed(claimed=taken, cancelled=stopped)

    async def _create(self, row: Reservation, request: SandboxRequest) -> Sandbox:
        """Make the sandbox of a row that is ours, showing signs of life meanwhile."""
        making = asyncio.create_task(self._create_and_restore(row, request))
        try:
            while not (await asyncio.wait({making}, timeout=HEARTBEAT_SECONDS))[0]:
                beat = heartbeat(row, self._clock())
                taken, stopped = await shielded_outcome(
                    self._reservations.compare_and_set(row, beat, step="sandbox.beat", reason="")
                )
                row = beat if taken else row
                _raise_unless_claimed(claimed=taken, cancelled=stopped)
            sandbox, how = making.result()
            done = mark_ready(row, sandbox.id, self._clock())
            row = await shielded(self._compare_and_set(row, done, "sandbox.record", how))
        except (SandboxError, OSError, asyncio.CancelledError):
            await shielded(self._cancel_creation(making, row))
            raise
        finally:
            await _cancel_and_wait(making)
        self._set_open(row, request.spec, sandbox, services_restarted=how == "created")
        return sandbox

    async def _create_and_restore(self, row: Reservation, request: SandboxRequest) -> tuple[Sandbox, str]:
        self.backend.checkpoint("sandbox.acquire.before_create")
        sandbox = await self.backend.provider.create(request.spec)
        self.backend.checkpoint("sandbox.acquire.after_create")
        keeper = self.backend.snapshotter
        if keeper is None or row.snapshot is None:
            return sandbox, "created"
        restored = await keeper.restore(sandbox, row.snapshot)
        self.backend.checkpoint("sandbox.acquire.after_restore")
        return sandbox, "restored" if restored else "created"

    async def _cancel_creation(self, creation: asyncio.Task[tuple[Sandbox, str]], row: Reservation) -> None:
        await _cancel_and_wait(creation)
        await self._abandon(row)

    async def _abandon(self, row: Reservation) -> None:
        """Leave nothing that others would wait for."""
        if row.snapshot is None:
            await self._reservations.delete(row, step="sandbox.give_up", reason="failed")
        else:
            await self._reservations.compare_and_set(
                row, mark_stopped(row, self._clock()), step="sandbox.give_up", reason="failed"
            )

    def evict(self, label: str) -> None:
        """Forget the open sandbox of this label; the provider's is left alone."""
        self._open.pop(label, None)

    def get_open(self, label: str) -> Sandbox | None:
        """Return the sandbox that this process has open."""
        held = self._open.get(label)
        return held.sandbox if held else None

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox of which somebody remembers the id, whatever the register says; raises Gone."""
        held = self._open.get(spec.label)
        if held is not None and held.sandbox.id == sandbox_id:
            return held.sandbox
        return await self.backend.provider.connect(sandbox_id, spec)

    async def save(self, request: SandboxRequest, *, changed: bool = False) -> None:
        """Take a snapshot, if this sandbox is to have any and something happened in it since the last one.

        Raises Busy when somebody else works in it: whoever does will save it.
        """
        held = self._open.get(request.spec.label)
        if (
            held is None
            or self.backend.snapshotter is None
            or not (request.snapshots and (held.dirty or changed))
        ):
            return
        async with self.backend.locks.exclusive(request.spec.label, timeout=1.0):
            row = await self._reservations.get(request.spec.label)
            if row is not None and row.boot == held.boot and row.status is ReservationStatus.READY:
                held.dirty = False
                await save_snapshot(self.backend, row, held.sandbox)


def _raise_unless_claimed(*, claimed: bool, cancelled: Cancellation) -> None:
    """Stop who is to stop, and who has lost the row."""
    if cancelled is not None:
        raise cancelled
    if not claimed:
        raise ReservationConflict


async def _cancel_and_wait(creation: asyncio.Task[tuple[Sandbox, str]]) -> None:
    """Have the making of a sandbox come to its end; what it made by then has no row, and a sweep finds it."""
    if not creation.done():
        creation.cancel()
        await asyncio.wait({creation})


async def save_snapshot(backend: Backend, row: Reservation, sandbox: Sandbox) -> Reservation:
    """Take a snapshot and put its name into the row, unless another holder came first; returns the row."""
    if backend.snapshotter is None:
        return row
    backend.checkpoint("sandbox.snapshot.before")
    name = await backend.snapshotter.save(sandbox, row)
    if name is None:
        return row
    backend.checkpoint("sandbox.snapshot.after_put")
    after = set_snapshot(row, name, backend.clock())
    if not await backend.reservations.compare_and_set(row, after, step="sandbox.snapshot", reason=""):
        await backend.snapshotter.delete(name)
        return row
    await backend.snapshotter.prune(name)
    return after
