"""The leases on sandboxes, on both databases: who may take one, and when."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from delivery.clock import utc_now
from delivery.database import Database
from gateway.register import SqlLeases
from sandbox.guard import Guard

LABEL = "dovecote-here-one"
LONG = 240.0
"""Seconds of a lease's life, far beyond a test's."""
MACHINE = f"0123456789abcdef@{'pigeon.' * 9}example:18446744073709551615"
"""An instance on a machine with the longest name there is."""


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
    dead, alive = SqlLeases(database, MACHINE), SqlLeases(database, MACHINE)
    assert await dead.take(LABEL, ttl=LONG) == 1
    assert await alive.take(LABEL, ttl=LONG) == 2
    assert not await dead.renew(LABEL, 1, ttl=LONG)
    await dead.leave(LABEL, 1)
    assert await SqlLeases(database, "another").take(LABEL, ttl=LONG) is None


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
