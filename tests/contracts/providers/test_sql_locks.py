"""The leases on sandboxes, on both databases: who may take one, and when."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from delivery.broker.leases import MemoryLeases
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.environments.reservations import SqlLeases
from gateway.infra.replica_presence import Presence
from gateway.store import sandboxes
from sandbox.errors import Unreachable
from sandbox.lifecycle.locks import Guard

LABEL = "dovecote-here-one"
LONG = 240.0
"""Seconds of a lease's life, far beyond a test's."""


async def test_another_replica_waits_for_the_end_of_a_lease(database: Database) -> None:
    """What a live one holds nobody takes; what one left, or let expire, is free, with a higher fence."""
    later = timedelta(0)

    def clock() -> datetime:
        return utc_now() + later

    here, there = (SqlLeases(database, name, clock=clock) for name in ("here", "there"))
    assert await here.take(LABEL, ttl=LONG) == 1
    assert await there.take(LABEL, ttl=LONG) is None
    assert await here.renew(LABEL, 1, ttl=LONG)
    await here.leave(LABEL, 1)
    assert await there.take(LABEL, ttl=LONG) == 2
    later = timedelta(seconds=LONG + 1)
    assert await here.take(LABEL, ttl=LONG) == 3
    assert not await there.renew(LABEL, 2, ttl=LONG)


async def test_what_a_dead_process_of_ours_held_is_free_at_once(database: Database) -> None:
    """Nobody waits for the lease of a process that certainly died, and its fence is worth nothing."""
    broker = MemoryLeases()
    before, now = (_presence(broker, "here", boot=boot) for boot in ("1", "2"))
    dead, alive = (SqlLeases(database, one.name, presence=one) for one in (before, now))
    async with before.kept(_unconcerned), now.kept(_unconcerned):
        assert await dead.take(LABEL, ttl=LONG) == 1
        assert await alive.take(LABEL, ttl=LONG) == 2
        assert not await dead.renew(LABEL, 1, ttl=LONG)
        await dead.leave(LABEL, 1)
        assert await SqlLeases(database, "there").take(LABEL, ttl=LONG) is None


async def test_what_a_replica_held_that_is_gone_is_free(database: Database) -> None:
    """Once the broker knows of its end, others need not wait for the end of its leases."""
    broker = MemoryLeases()
    here, there = (_presence(broker, name) for name in ("here", "there"))
    held, wanted = (SqlLeases(database, one.name, presence=one) for one in (here, there))
    async with there.kept(_unconcerned):
        async with here.kept(_unconcerned):
            assert await held.take(LABEL, ttl=LONG) == 1
        assert await wanted.take(LABEL, ttl=LONG) == 2
        assert not await held.renew(LABEL, 1, ttl=LONG)


async def test_a_replica_waits_for_one_that_is_present(database: Database) -> None:
    """It asks the broker, and gets nothing; what the broker cannot tell keeps it waiting as well."""
    broker = MemoryLeases()
    here, there = (_presence(broker, name) for name in ("here", "there"))
    wanted = SqlLeases(database, there.name, presence=there)
    async with there.kept(_unconcerned), here.kept(_unconcerned):
        assert await SqlLeases(database, here.name, presence=here).take(LABEL, ttl=LONG) == 1
        assert await wanted.take(LABEL, ttl=LONG) is None


async def test_who_came_back_meanwhile_keeps_what_it_has_taken_since(database: Database) -> None:
    """A replica that seemed to be gone may be at work again when its lease is to be taken over."""
    broker = MemoryLeases()
    back = _presence(broker, "here")
    again = SqlLeases(database, back.name, presence=back)

    class Late(Presence):
        async def is_gone(self, name: str) -> bool:
            assert await again.take(LABEL, ttl=LONG) == 2
            return name == back.name

    there = Late(broker, instance="there", boot="1", ttl=LONG)
    async with back.kept(_unconcerned), there.kept(_unconcerned):
        assert await again.take(LABEL, ttl=LONG) == 1
        assert await SqlLeases(database, there.name, presence=there).take(LABEL, ttl=LONG) is None
        assert await again.renew(LABEL, 2, ttl=LONG)


async def test_who_lost_its_presence_stops_when_somebody_took_over(database: Database) -> None:
    """It looks at once, not when the lease is to be renewed: another may be at work there."""
    broker = MemoryLeases()
    presence = _presence(broker, "here")
    guard = Guard(SqlLeases(database, presence.name, presence=presence), ttl=LONG)
    async with presence.kept(guard.doubt):
        with pytest.raises(Unreachable, match="lost"):
            await _work_while_another_takes_over(guard, broker, presence, database)


async def _work_while_another_takes_over(
    guard: Guard, broker: MemoryLeases, presence: Presence, database: Database
) -> None:
    async with guard.use(LABEL):
        held = await _lease(database)
        async with database.begin() as connection:
            assert await sandboxes.take_lease(
                connection, LABEL, holder="there", now=utc_now(), ttl=LONG, left=held
            )
        broker.revoke(f"p:{presence.name}")
        await asyncio.Event().wait()


async def test_who_lost_its_presence_goes_on_when_nobody_took_over(database: Database) -> None:
    """A call is not ended because the broker was away; what is to be taken meanwhile waits for it."""
    broker = MemoryLeases()
    presence = _presence(broker, "here")
    leases = SqlLeases(database, presence.name, presence=presence)
    guard = Guard(leases, ttl=LONG, patience=60.0)
    doubted = asyncio.Event()

    def doubt() -> None:
        guard.doubt()
        doubted.set()

    async with presence.kept(doubt), guard.use(LABEL):
        before = await _lease(database)
        doubted.clear()
        broker.revoke(f"p:{presence.name}")
        await doubted.wait()
        assert await leases.take("another label", ttl=LONG) is None
        async with guard.use("another label"):
            assert presence.is_certain
        async with asyncio.timeout(60):
            while await _lease(database) == before:  # noqa: ASYNC110 - renewed in a task that tells nobody
                await asyncio.sleep(0.05)


async def _lease(database: Database) -> sandboxes.Held | None:
    async with database.read() as connection:
        return await sandboxes.lease_of(connection, LABEL)


def _presence(broker: MemoryLeases, instance: str, *, boot: str = "1") -> Presence:
    return Presence(broker, instance=instance, boot=boot, ttl=LONG)


def _unconcerned() -> None:
    """Do nothing about it."""


async def test_a_call_that_was_cut_short_keeps_nobody_out(database: Database) -> None:
    """The lease may have been written when the call that asked for it was cancelled: it is still ours."""
    guard = Guard(SqlLeases(database, "here"), ttl=LONG, patience=60.0)

    async def enter() -> None:
        async with guard.use(LABEL):
            pass

    for passes in range(12):
        entering = asyncio.create_task(enter())
        for _ in range(passes):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait({entering})
        async with guard.use(LABEL):
            pass
