"""The lock of the one writer: one holder at a time, urgent ones first, none lost when others cancel."""

from __future__ import annotations

import asyncio

from delivery.database.group_commit import FairLock, WriteOrder
from delivery.fair_gate import working_for


async def _acquire(door: FairLock, name: str, passed: list[str], *, urgent: bool = False) -> None:
    async with door.acquire(WriteOrder.URGENT if urgent else WriteOrder.NORMAL):
        passed.append(name)
        await asyncio.sleep(0)


async def test_those_in_a_hurry_go_first_and_each_kind_in_order() -> None:
    """Of those who wait, the urgent ones pass before the others, both as they came."""
    door, passed = FairLock(), list[str]()
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "C", "d", "E"):
            group.create_task(_acquire(door, name, passed, urgent=name.isupper()))
    assert passed == ["a", "C", "E", "b", "d"]


async def test_one_at_a_time() -> None:
    """Two holders are never inside together, even when the lock changes hands."""
    door, inside = FairLock(), 0

    async def enter() -> None:
        nonlocal inside
        async with door.acquire():
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(enter() for _ in range(50)))


async def test_who_gives_up_waiting_stops_nobody() -> None:
    """A waiter that is cancelled, before or at the moment it acquires, leaves the lock to the next."""
    door, passed = FairLock(), list[str]()
    async with door.acquire():
        tasks = [asyncio.create_task(_acquire(door, name, passed)) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        tasks[0].cancel()
    tasks[1].cancel()  # it has just been let in
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == ["c"]
    await _acquire(door, "d", passed)
    assert passed == ["c", "d"]


async def test_accounts_take_turns() -> None:
    """The writer of another account waits behind one writer of the first, not behind all of them."""
    lock, passed = FairLock(), list[str]()
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            with working_for("ann"):
                group.create_task(_acquire(lock, f"ann{number}", passed))
        with working_for("bob"):
            group.create_task(_acquire(lock, "bob", passed))
    assert passed.index("bob") <= 2
    assert [name for name in passed if name != "bob"] == [f"ann{number}" for number in range(20)]


async def test_the_commit_comes_after_all_who_wait() -> None:
    """A commit lets those go first who wait when the lock is passed on, and is not forgotten."""
    lock, passed = FairLock(), list[str]()

    async def commit() -> None:
        async with lock.acquire(WriteOrder.COMMIT):
            passed.append("commit")

    async with asyncio.TaskGroup() as group, lock.acquire():
        group.create_task(commit())
        await asyncio.sleep(0)
        group.create_task(_acquire(lock, "a", passed))
        group.create_task(_acquire(lock, "b", passed))
        await asyncio.sleep(0)
    assert passed == ["a", "b", "commit"]
