"""The guard: calls of one process share a sandbox, processes take turns, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from memory_reservations import MemoryLeases
from sandbox.errors import Busy, Unreachable
from sandbox.lifecycle.locks import Guard

LABEL = "dovecote-here-one"


async def test_two_replicas_take_turns() -> None:
    """What one holds, another waits for; the fence grows with every holder."""
    leases = MemoryLeases()
    here, there = (Guard(leases, patience=5.0) for _ in range(2))
    waiting = asyncio.Event()

    async def other() -> None:
        waiting.set()
        async with there.use(LABEL):
            assert leases.held[LABEL] == 2

    async with asyncio.TaskGroup() as group, here.use(LABEL), here.use(LABEL):
        assert leases.held[LABEL] == 1
        task = group.create_task(other())
        await waiting.wait()
        assert not task.done()
    assert not leases.held


async def test_waiting_is_bounded_and_told() -> None:
    """Whoever waits too long is told so, in words for a person."""
    leases = MemoryLeases()
    async with Guard(leases).use(LABEL):
        with pytest.raises(Busy, match="in use elsewhere"):
            async with Guard(leases, patience=0.05).use(LABEL):
                raise AssertionError("two replicas at once")


async def test_alone_is_alone() -> None:
    """Nobody gets a sandbox alone that is in use, and nobody uses one that somebody has alone."""
    guard = Guard(patience=0.05)
    async with guard.use(LABEL):
        with pytest.raises(Busy):
            async with guard.alone(LABEL):
                raise AssertionError("not alone")
    async with guard.alone(LABEL):
        with pytest.raises(Busy):
            async with guard.use(LABEL):
                raise AssertionError("not alone")
    async with guard.use(LABEL):
        pass


async def test_a_lost_lease_ends_the_call_under_it() -> None:
    """A holder that was replaced (frozen, or its database away) writes no further."""
    leases = MemoryLeases()
    written: list[str] = []

    async def work() -> None:
        async with Guard(leases, ttl=0.1).use(LABEL):
            del leases.held[LABEL]
            await leases.take(LABEL, ttl=60)
            await asyncio.Event().wait()
            written.append("too late")

    with pytest.raises(Unreachable, match="lost"):
        await work()
    assert not written
    assert leases.held == {LABEL: 2}
