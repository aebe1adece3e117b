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

from sandbox.errors import Gone, SandboxError, Unreachable
from sandbox.exec.shielded import Stopped, finished, outcome
from sandbox.lifecycle.backend import Stand
from sandbox.lifecycle.reservations import (
    Reservation,
    Status,
    Wanted,
    beaten,
    cold,
    kept,
    ready,
    remade,
    reserved,
    woken,
)
from sandbox.lifecycle.services import Services
from sandbox.model import SandboxId, Spec
from sandbox.port import Sandbox
from sandbox.workspaces.syncer import Carrier

log = structlog.get_logger(__name__)

Returned = TypeVar("Returned")
Work = Callable[[Sandbox], Awaitable[Returned]]
Claim = Callable[[], Awaitable[bool]]

READ_AGAIN = 0.1
BEAT = 8.0
"""Seconds between signs of life of somebody who is making a sandbox; less than half of STUCK."""
TOUCH = 15.0
"""Seconds for which the idle timer of a sandbox in use is left alone, at most."""

MOST_OPEN = 4096


class Lost(Exception):
    """Somebody else changed the row first; it is read again."""


@dataclass(slots=True)
class _Open:
    """A sandbox this process has open."""

    spec: Spec
    sandbox: Sandbox
    boot: int
    touched: datetime
    dirty: bool = False
    carried: bool = False
    unkept: bool = False
    revived: bool = False
    carrying: asyncio.Lock = field(default_factory=asyncio.Lock)


class Pool:
    """The sandboxes of one provider that this process has open, and the way to them."""

    def __init__(self, stand: Stand, *, patience: float = 300.0) -> None:
        self.stand = stand
        self._register = stand.register
        self._clock = stand.clock
        self._patience = patience
        self._open: dict[str, _Open] = {}
        self._making: set[str] = set()

    async def use(self, wanted: Wanted, work: Work[Returned], *, reads: bool = False) -> Returned:
        """Run `work` on the sandbox; when that turns out to be gone, exactly once more on a new one.

        `reads`: it changes no files, so that nobody looks for such.
        """
        async with self.stand.guard.use(wanted.spec.label):
            sandbox = await self.acquire(wanted)
            try:
                return await self._worked(wanted, sandbox, work, reads=reads)
            except Gone:
                self.evict(wanted.spec.label)
            again = await self.acquire(wanted, gone=sandbox.id)
            return await self._worked(wanted, again, work, reads=reads)

    async def _worked(
        self, wanted: Wanted, sandbox: Sandbox, work: Work[Returned], *, reads: bool
    ) -> Returned:
        """Work, with the idle timer reset before, now and then meanwhile, and after."""
        held = self._open.get(wanted.spec.label)
        if held is not None:
            held.dirty = True
        async with self.attended(wanted, every=min(TOUCH, wanted.spec.idle_timeout / 3)):
            if held is not None and self.stand.carrier is not None:
                await self._carry_once(held, self.stand.carrier)
            if held is not None and not held.revived and wanted.spec.persistent:
                await self._revive(held)
            done = await work(sandbox)
            if self.stand.carrier is not None and not reads:
                await self.stand.carrier.kept(wanted.spec)
            return done

    async def _carry_once(self, held: _Open, carrier: Carrier) -> None:
        """Before a sandbox is first used in a turn, have it hold what the workspace store holds."""
        async with held.carrying:
            if not held.carried:
                await carrier.carry(held.sandbox, held.spec)
                held.carried = True
            held.unkept = True

    async def _revive(self, held: _Open) -> None:
        """Once a machine is awake, or first known to this process, start again the services that it lost."""
        async with held.carrying:
            if held.revived:
                return
            label = held.spec.label
            try:
                names = await Services(sandbox=held.sandbox, rest=held.spec.services_rest).revive()
            except Gone:
                raise
            except SandboxError as error:
                log.warning("sandbox.services_not_revived", label=label, error=str(error))
            else:
                if names:
                    log.info("sandbox.services_revived", label=label, services=names)
            held.revived = True

    def begin(self, label: str) -> None:
        """A turn begins: what was written to the workspace store since is to be carried in."""
        held = self._open.get(label)
        if held is not None:
            held.carried = False

    async def bring_back(self, wanted: Wanted) -> None:
        """Carry what commands changed to the workspace store, when the sandbox was used since the last time.

        Raises SandboxError.
        """
        held = self._open.get(wanted.spec.label)
        if held is not None and held.unkept:
            await self.carry(held.sandbox, wanted.spec)

    async def carry(self, sandbox: Sandbox, spec: Spec) -> None:
        """Bring to the workspace store and to a sandbox what changed in the other; raises SandboxError."""
        if self.stand.carrier is None:
            return
        async with self.stand.guard.use(spec.label):
            held = self._open.get(spec.label)
            async with held.carrying if held is not None else asyncio.Lock():
                await self.stand.carrier.carry(sandbox, spec)
                if held is not None:
                    held.unkept = False

    @asynccontextmanager
    async def attended(self, wanted: Wanted, *, every: float) -> AsyncIterator[None]:
        """Keep an open sandbox from falling idle."""
        attending = asyncio.create_task(self._attend(wanted, every))
        try:
            yield
        finally:
            attending.cancel()
            await asyncio.wait({attending})
            if not attending.cancelled() and (error := attending.exception()) is not None:
                log.warning("sandbox.not_kept_alive", label=wanted.spec.label, error=str(error))

    async def _attend(self, wanted: Wanted, every: float) -> None:
        while True:
            held = self._open.get(wanted.spec.label)
            now = self._clock()
            if held is not None and (now - held.touched).total_seconds() >= every:
                await self._touch(wanted, held, now)
            await asyncio.sleep(every)

    async def _touch(self, wanted: Wanted, held: _Open, now: datetime) -> None:
        held.touched = now
        await self._register.touch(wanted.spec.label, wanted.owner.conversation, now)
        try:
            await held.sandbox.keep_alive(wanted.spec.idle_timeout)
        except SandboxError as error:
            log.warning("sandbox.not_kept_alive", label=wanted.spec.label, error=str(error))

    async def acquire(self, wanted: Wanted, *, gone: SandboxId | None = None) -> Sandbox:
        """Return the sandbox of a label, awake: the open one, the known one, or a new one.

        The caller has been let through by the guard. `gone` is one of which it knows that it is not to be
        used. Raises SandboxError.
        """
        deadline = asyncio.get_running_loop().time() + self._patience
        while asyncio.get_running_loop().time() < deadline:
            try:
                return await self._step(wanted, gone)
            except Lost:
                await asyncio.sleep(READ_AGAIN)
        raise Unreachable("the sandbox is being made by somebody who does not come to an end")

    async def _step(self, wanted: Wanted, gone: SandboxId | None) -> Sandbox:
        """Do the next thing that brings us nearer; raises Lost when somebody else is at it."""
        if wanted.spec.label in self._making:
            raise Lost
        row = await self._register.find(wanted.spec.label)
        if row is None:
            fresh = reserved(wanted, self._clock())
            return await self._claim_and_make(fresh, wanted, partial(self._register.add, fresh))
        if row.status is Status.CREATING:
            if row.label in self._making:
                raise Lost
            log.warning("sandbox.creation_reset", label=row.label, since=row.changed_at.isoformat())
            return await self._make_again(row, wanted, "reset")
        if row.sandbox is None or row.sandbox == gone:
            return await self._make_again(row, wanted, "gone" if gone else "cold")
        try:
            return await self._connect(row, row.sandbox, wanted)
        except Gone:
            self.evict(row.label)
        return await self._make_again(row, wanted, "gone")

    async def _connect(self, row: Reservation, sandbox_id: SandboxId, wanted: Wanted) -> Sandbox:
        held = self._open.get(row.label)
        if held is not None and held.spec == wanted.spec and held.boot == row.boot:
            sandbox = held.sandbox
        else:
            sandbox = await self.stand.provider.connect(sandbox_id, wanted.spec)
        if row.paused or row.active_since is None:
            if held is not None:
                held.revived = False
            row = await self._swap(row, woken(row, wanted, self._clock()), "sandbox.wake", "woken")
        self._keep_open(row, wanted.spec, sandbox)
        return sandbox

    def _keep_open(self, row: Reservation, spec: Spec, sandbox: Sandbox, *, revived: bool = False) -> None:
        held = self._open.get(row.label)
        if len(self._open) >= MOST_OPEN:
            self._open.pop(next(iter(self._open)))
        if held is None or held.sandbox is not sandbox:
            dirty = held.dirty if held else False
            revived = revived or (held is not None and held.revived and held.boot == row.boot)
            self._open[row.label] = _Open(
                spec=spec,
                sandbox=sandbox,
                boot=row.boot,
                touched=row.used_at,
                dirty=dirty,
                revived=revived,
            )

    async def _swap(self, before: Reservation, after: Reservation, step: str, why: str) -> Reservation:
        if not await self._register.swap(before, after, step=step, why=why):
            raise Lost
        return after

    async def _make_again(self, row: Reservation, wanted: Wanted, why: str) -> Sandbox:
        fresh = remade(row, wanted, self._clock())
        claim = partial(self._register.swap, row, fresh, step="sandbox.remake", why=why)
        return await self._claim_and_make(fresh, wanted, claim)

    async def _claim_and_make(self, row: Reservation, wanted: Wanted, claim: Claim) -> Sandbox:
        """Be the one in this process who makes the sandbox of a label; raises Lost when another is."""
        if row.label in self._making:
            raise Lost
        self._making.add(row.label)
        try:
            await self._claim(row, claim())
            return await self._make(row, wanted)
        finally:
            self._making.discard(row.label)

    async def _claim(self, row: Reservation, claim: Awaitable[bool]) -> None:
        """Take it upon us to make the sandbox; who is stopped at that moment lets go of the row again."""
        taken, stopped = await outcome(claim)
        if stopped is not None and taken:
            await finished(self._give_up(row))
        _go_on(taken=taken, stopped=stopped)

    async def _make(self, row: Reservation, wanted: Wanted) -> Sandbox:
        """Make the sandbox of a row that is ours, showing signs of life meanwhile."""
        making = asyncio.create_task(self._made(row, wanted))
        try:
            while not (await asyncio.wait({making}, timeout=BEAT))[0]:
                beat = beaten(row, self._clock())
                taken, stopped = await outcome(self._register.swap(row, beat, step="sandbox.beat", why=""))
                row = beat if taken else row
                _go_on(taken=taken, stopped=stopped)
            sandbox, how = making.result()
            done = ready(row, sandbox.id, self._clock())
            row = await finished(self._swap(row, done, "sandbox.record", how))
        except (SandboxError, OSError, asyncio.CancelledError):
            await finished(self._let_go(making, row))
            raise
        finally:
            await _ended(making)
        self._keep_open(row, wanted.spec, sandbox, revived=how == "created")
        return sandbox

    async def _made(self, row: Reservation, wanted: Wanted) -> tuple[Sandbox, str]:
        self.stand.checkpoint("sandbox.acquire.before_create")
        sandbox = await self.stand.provider.create(wanted.spec)
        self.stand.checkpoint("sandbox.acquire.after_create")
        keeper = self.stand.keeper
        if keeper is None or row.snapshot is None:
            return sandbox, "created"
        restored = await keeper.restore(sandbox, row.snapshot)
        self.stand.checkpoint("sandbox.acquire.after_restore")
        return sandbox, "restored" if restored else "created"

    async def _let_go(self, making: asyncio.Task[tuple[Sandbox, str]], row: Reservation) -> None:
        await _ended(making)
        await self._give_up(row)

    async def _give_up(self, row: Reservation) -> None:
        """Leave nothing that others would wait for."""
        if row.snapshot is None:
            await self._register.drop(row, step="sandbox.give_up", why="failed")
        else:
            await self._register.swap(row, cold(row, self._clock()), step="sandbox.give_up", why="failed")

    def evict(self, label: str) -> None:
        """Forget the open sandbox of this label; the provider's is left alone."""
        self._open.pop(label, None)

    def held(self, label: str) -> Sandbox | None:
        """Return the sandbox that this process has open."""
        held = self._open.get(label)
        return held.sandbox if held else None

    async def reach(self, sandbox_id: SandboxId, spec: Spec) -> Sandbox:
        """Return a sandbox of which somebody remembers the id, whatever the register says; raises Gone."""
        held = self._open.get(spec.label)
        if held is not None and held.sandbox.id == sandbox_id:
            return held.sandbox
        return await self.stand.provider.connect(sandbox_id, spec)

    async def save(self, wanted: Wanted, *, changed: bool = False) -> None:
        """Take a snapshot, if this sandbox is to have any and something happened in it since the last one.

        Raises Busy when somebody else works in it: whoever does will save it.
        """
        held = self._open.get(wanted.spec.label)
        if held is None or self.stand.keeper is None or not (wanted.snapshots and (held.dirty or changed)):
            return
        async with self.stand.guard.alone(wanted.spec.label, patience=1.0):
            row = await self._register.find(wanted.spec.label)
            if row is not None and row.boot == held.boot and row.status is Status.READY:
                held.dirty = False
                await save(self.stand, row, held.sandbox)


def _go_on(*, taken: bool, stopped: Stopped) -> None:
    """Stop who is to stop, and who has lost the row."""
    if stopped is not None:
        raise stopped
    if not taken:
        raise Lost


async def _ended(making: asyncio.Task[tuple[Sandbox, str]]) -> None:
    """Have the making of a sandbox come to its end; what it made by then has no row, and a sweep finds it."""
    if not making.done():
        making.cancel()
        await asyncio.wait({making})


async def save(stand: Stand, row: Reservation, sandbox: Sandbox) -> Reservation:
    """Take a snapshot and put its name into the row, unless another holder came first; returns the row."""
    if stand.keeper is None:
        return row
    stand.checkpoint("sandbox.snapshot.before")
    name = await stand.keeper.save(sandbox, row)
    if name is None:
        return row
    stand.checkpoint("sandbox.snapshot.after_put")
    after = kept(row, name, stand.clock())
    if not await stand.register.swap(row, after, step="sandbox.snapshot", why=""):
        await stand.keeper.drop(name)
        return row
    await stand.keeper.drop_older(name)
    return after
