"""Sandboxes under kill -9: at every fault point of their lives, and with twenty who want one at once.

    python -m bench.chaos.sandboxes [--rounds 10] [--database URL]

A process is killed at a point; then one round of the reaper and one sweep, a minute later by their clock,
must leave no machine, row or snapshot behind that belongs to nobody, and the key must work. The provider
keeps its machines in directories, so that they outlive the process that made them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from bench.chaos.directory_sandboxes import Yard
from channels.port import Limits
from delivery.broker.memory_events import MemoryStream
from delivery.broker.wake_ups import MemorySignals
from delivery.database.engine import Database
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Ledger
from delivery.events.relay import Relay
from gateway.accounts import api_keys
from gateway.environments.reservations import SqlLeases, SqlRegister
from gateway.migrations import migrate_up
from gateway.observability.fault_points import Faults
from gateway.observability.metrics import Metrics
from sandbox.labels import Owner, Scope, label_of, prefix_of
from sandbox.lifecycle.backend import Stand
from sandbox.lifecycle.locks import Guard
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import Reaper, Surroundings
from sandbox.lifecycle.reservations import Reservation, Status, Wanted, now_utc
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.lifecycle.snapshotter import Keeper
from sandbox.lifecycle.teardown import Endings
from sandbox.model import Command, Spec
from sandbox.snapshots.local import LocalStore

HERE = "abcdef012345"
LATER = timedelta(seconds=60)


@dataclass(kw_only=True)
class Line:
    """One process's way to the boxes."""

    pool: Pool
    endings: Endings
    register: SqlRegister
    wanted: Wanted

    async def say(self, words: str) -> bytes:
        """Use the sandbox."""
        return (await ReservedSandbox(self.pool, self.wanted).run(Command(script=words))).stdout

    async def row(self) -> Reservation:
        """Return the row as it stands."""
        found = await self.register.find(self.wanted.spec.label)
        assert found is not None
        return found


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where a run happens."""

    database: str
    directory: Path
    account: str

    @asynccontextmanager
    async def line(
        self, key: str, *, fault: str | None = None, later: timedelta = timedelta(0)
    ) -> AsyncIterator[Line]:
        """Open everything as a process would, killed at a fault point, perhaps some time later."""
        database = Database(self.database)
        faults = Faults(fault)
        relay = Relay(database, MemoryStream(), faults.checkpoint)
        router = Router(lambda _channel: Limits(text=4000))
        ledger = Ledger(database, relay, router, MemorySignals(), faults.checkpoint)
        register = SqlRegister(ledger, Metrics())
        leases = SqlLeases(database, uuid.uuid4().hex, clock=lambda: now_utc() + later)
        stand = Stand(
            provider=Yard(self.directory / "yard"),
            register=register,
            guard=Guard(leases, ttl=3.0, patience=20.0),
            keeper=Keeper(LocalStore(self.directory / "snapshots"), self.directory / "scratch"),
            checkpoint=faults.checkpoint,
            clock=lambda: now_utc() + later,
        )
        pool = Pool(stand)
        try:
            yield Line(
                pool=pool, endings=Endings(stand, pool.evict), register=register, wanted=self.wanted(key)
            )
        finally:
            await database.close()

    def wanted(self, key: str) -> Wanted:
        """Return what a key asks for."""
        owner = Owner(account=self.account, scope=Scope.SESSION, conversation=key)
        spec = Spec(label=label_of(HERE, "yard", owner, persistent=True), namespace="space", persistent=True)
        return Wanted(spec=spec, owner=owner, provider="yard")


async def prepare(database: str, directory: Path) -> Ground:
    """Make the tables and an account."""
    await migrate_up(database)
    opened = Database(database)
    async with opened.begin() as connection:
        account, _key = await api_keys.create_account(connection, uuid.uuid4().hex)
    await opened.close()
    return Ground(database=database, directory=directory, account=account.id)


async def _acquire(line: Line) -> None:
    await line.say("one")


async def _snapshot(line: Line) -> None:
    await line.say("one")
    await line.pool.save(line.wanted)


async def _suspend(line: Line) -> None:
    await line.say("one")
    await line.endings.suspend(await line.row(), line.wanted.spec, why="idle")


async def _wake(line: Line) -> None:
    await _suspend(line)
    await line.say("two")


async def _restore(line: Line) -> None:
    await _snapshot(line)
    sandbox = (await line.row()).sandbox
    assert sandbox is not None
    await line.pool.stand.provider.destroy(sandbox)
    await line.say("two")


async def _end(line: Line) -> None:
    await _snapshot(line)
    await line.endings.end(await line.row(), line.wanted.spec, why="expired")


async def _delete(line: Line) -> None:
    await _snapshot(line)
    await line.endings.delete(line.wanted.spec.label, why="removed")


Story = Callable[[Line], Awaitable[None]]
STORIES: dict[str, tuple[Story, tuple[str, ...]]] = {
    "acquire": (
        _acquire,
        (
            "sandbox.reserve.before_commit",
            "sandbox.reserve.after_commit",
            "sandbox.acquire.before_create",
            "sandbox.acquire.after_create",
            "sandbox.record.before_commit",
            "sandbox.record.after_commit",
        ),
    ),
    "restore": (
        _restore,
        (
            "sandbox.remake.before_commit",
            "sandbox.remake.after_commit",
            "sandbox.acquire.after_restore",
        ),
    ),
    "wake": (_wake, ("sandbox.wake.before_commit", "sandbox.wake.after_commit")),
    "snapshot": (
        _snapshot,
        (
            "sandbox.snapshot.before",
            "sandbox.snapshot.after_put",
            "sandbox.snapshot.before_commit",
            "sandbox.snapshot.after_commit",
        ),
    ),
    "suspend": (
        _suspend,
        (
            "sandbox.suspend.before",
            "sandbox.suspend.after",
            "sandbox.suspend.before_commit",
            "sandbox.suspend.after_commit",
        ),
    ),
    "end": (_end, ("sandbox.end.before_commit", "sandbox.end.after_commit")),
    "delete": (
        _delete,
        (
            "sandbox.delete.before_commit",
            "sandbox.delete.after_commit",
            "sandbox.delete.after_destroy",
        ),
    ),
}
POINTS = {point: story for story, points in STORIES.values() for point in points}


def forked(work: Callable[[], Awaitable[None]]) -> int:
    """Run something in a process of its own; returns its pid. Call it where no loop runs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(work())  # type: ignore[arg-type]  # every work is a coroutine
            code = 0
        except BaseException:  # noqa: BLE001 - the outermost frame of a process: nobody else would say it
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """Return how a process ended: its exit code, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _told(ground: Ground, key: str, point: str) -> None:
    async with ground.line(key, fault=point) as line:
        await POINTS[point](line)


async def mended(ground: Ground, key: str) -> None:
    """Hold what a killed process left to the promise; raises AssertionError."""
    async with ground.line(key, later=LATER) as line:

        async def spec_of(row: Reservation) -> Spec:
            return replace(line.wanted.spec, label=row.label)

        async def jobs_in(_row: Reservation) -> Sequence[str]:
            return ()

        async def end_jobs(_row: Reservation, _why: str) -> None:
            return None

        around = Surroundings(spec_of=spec_of, jobs_in=jobs_in, end_jobs=end_jobs)
        reaper = Reaper(line.register, {"yard": line.endings}, around, clock=_later)
        await reaper.round()
        await reaper.sweep(prefix_of(HERE))
        await _nothing_is_left_over(line)
        before = await line.register.find(line.wanted.spec.label)
        said = (await line.say("after")).decode().split()
        assert said[-1] == "after"
        assert before is None or before.snapshot is None or said[0] == "one", said
        await line.endings.delete(line.wanted.spec.label, why="removed")
        await _nothing_is_left_over(line)


def _later() -> datetime:
    return now_utc() + LATER


async def _nothing_is_left_over(line: Line) -> None:
    rows = await line.register.every()
    known = {row.label for row in rows}
    keeper = line.pool.stand.keeper
    assert keeper is not None
    assert {label for _id, label in await line.pool.stand.provider.list()} <= known
    assert set(await keeper.labels(prefix_of(HERE))) <= known
    assert all(row.status is Status.READY for row in rows), rows


def kill_at(ground: Ground, point: str, number: int) -> None:
    """Kill a process at a point and hold what it left to the promise."""
    key = f"{point}-{number}"
    code = ended(forked(lambda: _told(ground, key, point)))
    assert code == -signal.SIGKILL, f"{point} was not passed: {code}"
    code = ended(forked(lambda: mended(ground, key)))
    assert code == 0, f"after a kill at {point} something was left over; its traceback is above"


def herd(ground: Ground, key: str, *, processes: int = 2, each: int = 10) -> int:
    """Have so many processes want one sandbox so many times at once; returns how many were made."""

    async def crowd() -> None:
        async with ground.line(key) as line:
            await asyncio.gather(*(line.say("one") for _ in range(each)))

    pids = [forked(crowd) for _ in range(processes)]
    assert [ended(pid) for pid in pids] == [0] * processes
    return Yard(ground.directory / "yard").made()


def main(rounds: int, database: str | None) -> None:
    """Kill at every point, so many times each."""
    with tempfile.TemporaryDirectory() as name:
        url = database or f"sqlite+aiosqlite:///{name}/gateway.db"
        ground = asyncio.run(prepare(url, Path(name)))
        made = herd(ground, "herd")
        print(f"20 acquires of one key in two processes made {made} sandbox")
        for point in POINTS:
            for number in range(rounds):
                kill_at(ground, point, number)
            print(f"{point}: {rounds} kills, nothing left over")
            sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--database", help="postgresql+psycopg://… instead of a SQLite file")
    chosen = parser.parse_args()
    main(chosen.rounds, chosen.database)
