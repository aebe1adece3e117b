"""Locks on sandboxes, on both databases: which replica may take one, and when."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.environments.reservations import SqlLocks
from gateway.infra.replica_presence import ReplicaPresence
from gateway.store import sandboxes
from sandbox.errors import ProviderUnreachable
from sandbox.lifecycle.locks import SandboxLocks

LABEL = "dovecote-here-one"
LONG = 240.0
"""Seconds of a lease's life, far beyond a test's."""


async def test_another_replica_waits_for_the_end_of_a_lease(database: Database) -> None:
    """A live lock excludes others; a released or expired one is free, with a higher fence."""
    later = timedelta(0)

    def clock() -> datetime:
        return utc_now() + later

    here, there = (SqlLocks(database, name, clock=clock) for name in ("here", "there"))
    assert await here.acquire(LABEL, ttl=LONG) == 1
    assert await there.acquire(LABEL, ttl=LONG) is None
    assert await here.renew(LABEL, 1, ttl=LONG)
    await here.release(LABEL, 1)
    assert await there.acquire(LABEL, ttl=LONG) == 2
    later = timedelta(seconds=LONG + 1)
    assert await here.acquire(LABEL, ttl=LONG) == 3
    assert not await there.renew(LABEL, 2, ttl=LONG)


async def test_what_a_dead_process_of_ours_held_is_free_at_once(database: Database) -> None:
    """No caller waits for the lease of a process that certainly died, and its fence is worth nothing."""
    broker = MemoryLeases()
    before, now = (_presence(broker, "here", boot=boot) for boot in ("1", "2"))
    dead, alive = (SqlLocks(database, one.name, presence=one) for one in (before, now))
    async with before.maintained(_do_nothing), now.maintained(_do_nothing):
        assert await dead.acquire(LABEL, ttl=LONG) == 1
        assert await alive.acquire(LABEL, ttl=LONG) == 2
        assert not await dead.renew(LABEL, 1, ttl=LONG)
        await dead.release(LABEL, 1)
        assert await SqlLocks(database, "there").acquire(LABEL, ttl=LONG) is None


async def test_what_a_replica_held_that_is_gone_is_free(database: Database) -> None:
    """Once the broker has recorded its end, others need not wait for the end of its leases."""
    broker = MemoryLeases()
    here, there = (_presence(broker, name) for name in ("here", "there"))
    held, wanted = (SqlLocks(database, one.name, presence=one) for one in (here, there))
    async with there.maintained(_do_nothing):
        async with here.maintained(_do_nothing):
            assert await held.acquire(LABEL, ttl=LONG) == 1
        assert await wanted.acquire(LABEL, ttl=LONG) == 2
        assert not await held.renew(LABEL, 1, ttl=LONG)


async def test_a_replica_waits_for_one_that_is_present(database: Database) -> None:
    """It asks the broker and gets no lock; while the broker is unreachable it waits as well."""
    broker = MemoryLeases()
    here, there = (_presence(broker, name) for name in ("here", "there"))
    wanted = SqlLocks(database, there.name, presence=there)
    async with there.maintained(_do_nothing), here.maintained(_do_nothing):
        assert await SqlLocks(database, here.name, presence=here).acquire(LABEL, ttl=LONG) == 1
        assert await wanted.acquire(LABEL, ttl=LONG) is None


async def test_a_replica_that_came_back_keeps_its_newer_locks(database: Database) -> None:
    """A replica that seemed to be gone may have acquired the lock again before it is taken over."""
    broker = MemoryLeases()
    back = _presence(broker, "here")
    again = SqlLocks(database, back.name, presence=back)

    class Late(ReplicaPresence):
        async def is_dead(self, name: str) -> bool:
            assert await again.acquire(LABEL, ttl=LONG) == 2
            return name == back.name

    there = Late(broker, instance="there", boot="1", ttl=LONG)
    async with back.maintained(_do_nothing), there.maintained(_do_nothing):
        assert await again.acquire(LABEL, ttl=LONG) == 1
        assert await SqlLocks(database, there.name, presence=there).acquire(LABEL, ttl=LONG) is None
        assert await again.renew(LABEL, 2, ttl=LONG)


async def test_a_replica_that_lost_its_presence_stops_after_a_takeover(database: Database) -> None:
    """It checks at once, not at the next renewal, because another replica may hold the lock."""
    broker = MemoryLeases()
    presence = _presence(broker, "here")
    locks = SandboxLocks(SqlLocks(database, presence.name, presence=presence), ttl=LONG)
    async with presence.maintained(locks.recheck):
        with pytest.raises(ProviderUnreachable, match="lost"):
            await _work_while_another_takes_over(locks, broker, presence, database)


async def _work_while_another_takes_over(
    locks: SandboxLocks, broker: MemoryLeases, presence: ReplicaPresence, database: Database
) -> None:
    async with locks.shared(LABEL):
        held = await _lease(database)
        async with database.begin() as connection:
            assert await sandboxes.acquire_lock(
                connection, LABEL, holder="there", now=utc_now(), ttl=LONG, abandoned=held
            )
        broker.revoke(f"p:{presence.name}")
        await asyncio.Event().wait()


async def test_a_replica_that_lost_its_presence_continues_without_a_takeover(database: Database) -> None:
    """A broker outage ends no running call; a new lock waits for the broker."""
    broker = MemoryLeases()
    presence = _presence(broker, "here")
    leases = SqlLocks(database, presence.name, presence=presence)
    locks = SandboxLocks(leases, ttl=LONG, timeout=60.0)
    doubted = asyncio.Event()

    def recheck() -> None:
        locks.recheck()
        doubted.set()

    async with presence.maintained(recheck), locks.shared(LABEL):
        before = await _lease(database)
        doubted.clear()
        broker.revoke(f"p:{presence.name}")
        await doubted.wait()
        assert await leases.acquire("another label", ttl=LONG) is None
        async with locks.shared("another label"):
            assert presence.is_confirmed
        async with asyncio.timeout(60):
            while await _lease(database) == before:  # noqa: ASYNC110 - renewed without a notification
                await asyncio.sleep(0.05)


async def _lease(database: Database) -> sandboxes.LockRow | None:
    async with database.read() as connection:
        return await sandboxes.get_lock(connection, LABEL)


def _presence(broker: MemoryLeases, instance: str, *, boot: str = "1") -> ReplicaPresence:
    return ReplicaPresence(broker, instance=instance, boot=boot, ttl=LONG)


def _do_nothing() -> None:
    """Do nothing about it."""


async def test_a_call_that_was_cut_short_blocks_no_others(database: Database) -> None:
    """The lease may have been written when the call that asked for it was cancelled: it is still ours."""
    locks = SandboxLocks(SqlLocks(database, "here"), ttl=LONG, timeout=60.0)

    async def enter() -> None:
        async with locks.shared(LABEL):
            pass

    for passes in range(12):
        entering = asyncio.create_task(enter())
        for _ in range(passes):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait({entering})
        async with locks.shared(LABEL):
            pass
