"""Kill sandbox processes with SIGKILL at every fault point, and acquire one sandbox twenty times at once.

    python -m bench.chaos.sandboxes [--rounds 10] [--database URL]

A process is killed at a point. One round of the reaper and one sweep, a minute later by their clock, must
leave no orphaned instance, row or snapshot, and the key must work. The provider keeps its instances in
directories, so that they outlive the process that created them.
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

from bench.chaos.directory_sandboxes import ScriptProvider
from channels.port import ChannelLimits
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.wake_ups import MemoryWakeUps
from delivery.database.engine import Database
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Transactions
from delivery.events.relay import Relay
from gateway.accounts import api_keys
from gateway.environments.reservations import SqlLocks, SqlReservations
from gateway.maintenance.sandbox_passes import ReaperPasses
from gateway.migrations import migrate_up
from gateway.observability.fault_points import FaultPoints
from gateway.observability.metrics import Metrics
from sandbox.labels import Owner, Scope, installation_prefix, sandbox_label
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.locks import SandboxLocks
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import Reaper, ReaperHooks
from sandbox.lifecycle.reservations import Reservation, ReservationStatus, SandboxRequest, now_utc
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import ExecRequest, SandboxSpec
from sandbox.snapshots.local import LocalSnapshotStore

INSTALLATION = "abcdef012345"
LATER = timedelta(seconds=60)


@dataclass(kw_only=True)
class SandboxClient:
    """One process's access to the sandboxes."""

    pool: Pool
    teardown: Teardown
    reservations: SqlReservations
    request: SandboxRequest

    async def run_command(self, script: str) -> bytes:
        """Use the sandbox."""
        return (await ReservedSandbox(self.pool, self.request).run(ExecRequest(script=script))).stdout

    async def row(self) -> Reservation:
        """Return the present row."""
        found = await self.reservations.get(self.request.spec.label)
        assert found is not None
        return found


@dataclass(frozen=True, kw_only=True)
class ChaosSandboxSetup:
    """The database and directory of a run."""

    database: str
    directory: Path
    account: str

    @asynccontextmanager
    async def client(
        self, key: str, *, fault: str | None = None, later: timedelta = timedelta(0)
    ) -> AsyncIterator[SandboxClient]:
        """Open everything as a process would, killed at a fault point, optionally some time later."""
        database = Database(self.database)
        faults = FaultPoints(fault)
        relay = Relay(database, MemoryEvents(), faults.checkpoint)
        router = Router(lambda _channel: ChannelLimits(text=4000))
        transactions = Transactions(database, relay, router, MemoryWakeUps(), faults.checkpoint)
        register = SqlReservations(transactions, Metrics())
        leases = SqlLocks(database, uuid.uuid4().hex, clock=lambda: now_utc() + later)
        backend = Backend(
            provider=ScriptProvider(self.directory / "yard"),
            reservations=register,
            locks=SandboxLocks(leases, ttl=3.0, timeout=20.0),
            snapshotter=Snapshotter(
                LocalSnapshotStore(self.directory / "snapshots"), self.directory / "scratch"
            ),
            checkpoint=faults.checkpoint,
            clock=lambda: now_utc() + later,
        )
        pool = Pool(backend)
        try:
            yield SandboxClient(
                pool=pool,
                teardown=Teardown(backend, pool.evict),
                reservations=register,
                request=self.request(key),
            )
        finally:
            await database.close()

    def request(self, key: str) -> SandboxRequest:
        """Return the request of a key."""
        owner = Owner(account=self.account, scope=Scope.SESSION, conversation=key)
        spec = SandboxSpec(
            label=sandbox_label(INSTALLATION, "yard", owner, persistent=True),
            namespace="space",
            persistent=True,
        )
        return SandboxRequest(spec=spec, owner=owner, provider="yard")


async def prepare(database: str, directory: Path) -> ChaosSandboxSetup:
    """Create the tables and an account."""
    await migrate_up(database)
    opened = Database(database)
    async with opened.begin() as connection:
        account, _key = await api_keys.create_account(connection, uuid.uuid4().hex)
    await opened.close()
    return ChaosSandboxSetup(database=database, directory=directory, account=account.id)


async def _acquire(client: SandboxClient) -> None:
    await client.run_command("one")


async def _snapshot(client: SandboxClient) -> None:
    await client.run_command("one")
    await client.pool.snapshots.save(client.request)


async def _suspend(client: SandboxClient) -> None:
    await client.run_command("one")
    await client.teardown.suspend(await client.row(), client.request.spec, reason="idle")


async def _wake(client: SandboxClient) -> None:
    await _suspend(client)
    await client.run_command("two")


async def _restore(client: SandboxClient) -> None:
    await _snapshot(client)
    sandbox = (await client.row()).sandbox
    assert sandbox is not None
    await client.pool.backend.provider.destroy(sandbox)
    await client.run_command("two")


async def _end(client: SandboxClient) -> None:
    await _snapshot(client)
    await client.teardown.stop(await client.row(), client.request.spec, reason="expired")


async def _delete(client: SandboxClient) -> None:
    await _snapshot(client)
    await client.teardown.delete(client.request.spec.label, reason="removed")


Scenario = Callable[[SandboxClient], Awaitable[None]]
SCENARIOS: dict[str, tuple[Scenario, tuple[str, ...]]] = {
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
POINTS = {point: story for story, points in SCENARIOS.values() for point in points}


def fork_call(work: Callable[[], Awaitable[None]]) -> int:
    """Run a coroutine in a process of its own; returns its pid. Call it where no loop runs."""
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


def wait_for_exit(pid: int) -> int:
    """Return how a process ended: its exit code, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _run_until_killed(setup: ChaosSandboxSetup, key: str, point: str) -> None:
    async with setup.client(key, fault=point) as client:
        await POINTS[point](client)


async def check_recovered(setup: ChaosSandboxSetup, key: str) -> None:
    """Check that what a killed process left keeps the promise; raises AssertionError."""
    async with setup.client(key, later=LATER) as client:

        async def spec_of(row: Reservation) -> SandboxSpec:
            return replace(client.request.spec, label=row.label)

        async def jobs_in(_row: Reservation) -> Sequence[str]:
            return ()

        async def end_jobs(_row: Reservation, _why: str) -> None:
            return None

        context = ReaperHooks(get_spec=spec_of, list_running_jobs=jobs_in, end_jobs=end_jobs)
        reaper = ReaperPasses(Reaper(client.reservations, {"yard": client.teardown}, context, clock=_later))
        await reaper.visit_all()
        await reaper.sweep(installation_prefix(INSTALLATION))
        await _assert_clean(client)
        before = await client.reservations.get(client.request.spec.label)
        said = (await client.run_command("after")).decode().split()
        assert said[-1] == "after"
        assert before is None or before.snapshot is None or said[0] == "one", said
        await client.teardown.delete(client.request.spec.label, reason="removed")
        await _assert_clean(client)


def _later() -> datetime:
    return now_utc() + LATER


async def _assert_clean(client: SandboxClient) -> None:
    rows = await client.reservations.list_all()
    known = {row.label for row in rows}
    keeper = client.pool.backend.snapshotter
    assert keeper is not None
    assert {label for _id, label in await client.pool.backend.provider.list()} <= known
    assert set(await keeper.list_labels(installation_prefix(INSTALLATION))) <= known
    assert all(row.status is ReservationStatus.READY for row in rows), rows


def kill_at(setup: ChaosSandboxSetup, point: str, number: int) -> None:
    """Kill a process at a point and check that what it left keeps the promise."""
    key = f"{point}-{number}"
    code = wait_for_exit(fork_call(lambda: _run_until_killed(setup, key, point)))
    assert code == -signal.SIGKILL, f"{point} was not passed: {code}"
    code = wait_for_exit(fork_call(lambda: check_recovered(setup, key)))
    assert code == 0, f"after a kill at {point} something was left over; its traceback is above"


def acquire_concurrently(setup: ChaosSandboxSetup, key: str, *, processes: int = 2, each: int = 10) -> int:
    """Have so many processes acquire one sandbox so many times at once; returns how many were created."""

    async def crowd() -> None:
        async with setup.client(key) as client:
            await asyncio.gather(*(client.run_command("one") for _ in range(each)))

    pids = [fork_call(crowd) for _ in range(processes)]
    assert [wait_for_exit(pid) for pid in pids] == [0] * processes
    return ScriptProvider(setup.directory / "yard").created_count()


def main(rounds: int, database: str | None) -> None:
    """Kill at every point, so many times each."""
    with tempfile.TemporaryDirectory() as name:
        url = database or f"sqlite+aiosqlite:///{name}/gateway.db"
        setup = asyncio.run(prepare(url, Path(name)))
        made = acquire_concurrently(setup, "herd")
        print(f"20 acquires of one key in two processes made {made} sandbox")
        for point in POINTS:
            for number in range(rounds):
                kill_at(setup, point, number)
            print(f"{point}: {rounds} kills, nothing left over")
            sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--database", help="postgresql+psycopg://… instead of a SQLite file")
    chosen = parser.parse_args()
    main(chosen.rounds, chosen.database)
