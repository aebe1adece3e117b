"""Sandbox locks: calls of one process share a sandbox, processes alternate, and every wait ends."""

from __future__ import annotations

import asyncio

import pytest

from memory_reservations import MemorySandboxLocks
from sandbox.errors import ProviderUnreachable, SandboxBusy
from sandbox.lifecycle.locks import SandboxLocks

LABEL = "dovecote-here-one"


async def test_two_replicas_take_turns() -> None:
    """What one holds, another waits for; the fence grows with every holder."""
    leases = MemorySandboxLocks()
    here, there = (SandboxLocks(leases, timeout=5.0) for _ in range(2))
    waiting = asyncio.Event()

    async def other() -> None:
        waiting.set()
        async with there.shared(LABEL):
            assert leases.holders[LABEL] == 2

    async with asyncio.TaskGroup() as group, here.shared(LABEL), here.shared(LABEL):
        assert leases.holders[LABEL] == 1
        task = group.create_task(other())
        await waiting.wait()
        assert not task.done()
    assert not leases.holders


async def test_waiting_is_bounded_and_reported() -> None:
    """A call that waits too long fails with a text for users."""
    leases = MemorySandboxLocks()
    async with SandboxLocks(leases).shared(LABEL):
        with pytest.raises(SandboxBusy, match="is in use"):
            async with SandboxLocks(leases, timeout=0.05).shared(LABEL):
                raise AssertionError("two replicas at once")


async def test_alone_is_alone() -> None:
    """A sandbox in use cannot be locked exclusively, and an exclusive lock excludes every other call."""
    locks = SandboxLocks(timeout=0.05)
    async with locks.shared(LABEL):
        with pytest.raises(SandboxBusy):
            async with locks.exclusive(LABEL):
                raise AssertionError("not alone")
    async with locks.exclusive(LABEL):
        with pytest.raises(SandboxBusy):
            async with locks.shared(LABEL):
                raise AssertionError("not alone")
    async with locks.shared(LABEL):
        pass


async def test_a_lost_lease_ends_the_call_under_it() -> None:
    """A holder that was replaced (frozen, or its database away) writes no further."""
    leases = MemorySandboxLocks()
    written: list[str] = []

    async def work() -> None:
        async with SandboxLocks(leases, ttl=0.1).shared(LABEL):
            del leases.holders[LABEL]
            await leases.acquire(LABEL, ttl=60)
            await asyncio.Event().wait()
            written.append("too late")

    with pytest.raises(ProviderUnreachable, match="lost"):
        await work()
    assert not written
    assert leases.holders == {LABEL: 2}


class UnreachableLocks(MemorySandboxLocks):
    """Leases whose store cannot be reached once they are acquired."""

    async def renew(self, label: str, fence: int, *, ttl: float) -> bool:
        """Fail, as a database that does not answer."""
        raise ProviderUnreachable("the database does not answer")


async def test_a_lease_that_cannot_be_renewed_is_given_up_when_it_expires() -> None:
    """Past its expiry another replica may hold it, so the call under it is ended."""

    async def work() -> None:
        async with asyncio.timeout(20), SandboxLocks(UnreachableLocks(), ttl=0.2).shared(LABEL):
            await asyncio.Event().wait()

    with pytest.raises(ProviderUnreachable, match="lost"):
        await work()
