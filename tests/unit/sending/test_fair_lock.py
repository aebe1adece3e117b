"""The lock of the one writer: one holder at a time, urgent ones first, none lost when others cancel."""

from __future__ import annotations

import asyncio

from delivery.database.fair_lock import FairLock
from delivery.fair_gate import working_for


async def _acquire(lock: FairLock, name: str, passed: list[str], *, urgent: bool = False) -> None:
    await lock.acquire(urgent=urgent)
    passed.append(name)
    await asyncio.sleep(0)
    lock.release()


async def test_those_in_a_hurry_go_first_and_each_kind_in_order() -> None:
    """Of those who wait, the urgent ones pass before the others, both as they came."""
    lock, passed = FairLock(), list[str]()
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "C", "d", "E"):
            group.create_task(_acquire(lock, name, passed, urgent=name.isupper()))
    assert passed == ["a", "C", "E", "b", "d"]


async def test_one_at_a_time() -> None:
    """Two holders are never inside together, even when the lock changes hands."""
    lock, inside = FairLock(), 0

    async def enter() -> None:
        nonlocal inside
        await lock.acquire()
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        inside -= 1
        lock.release()

    await asyncio.gather(*(enter() for _ in range(50)))


async def test_a_cancelled_waiter_stops_no_others() -> None:
    """A waiter that is cancelled, before or at the moment it acquires, leaves the lock to the next."""
    lock, passed = FairLock(), list[str]()
    await lock.acquire()
    tasks = [asyncio.create_task(_acquire(lock, name, passed)) for name in ("a", "b", "c")]
    await asyncio.sleep(0)
    tasks[0].cancel()
    lock.release()
    tasks[1].cancel()  # it has just been let in
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == ["c"]
    await _acquire(lock, "d", passed)
    assert passed == ["c", "d"]


async def test_accounts_take_turns() -> None:
    """The writer of an account that has not asked before is next, before all waiting writers of others."""
    lock, passed = FairLock(), list[str]()
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            with working_for("ann"):
                group.create_task(_acquire(lock, f"ann{number}", passed))
        with working_for("bob"):
            group.create_task(_acquire(lock, "bob", passed))
    assert passed.index("bob") == 1
    assert [name for name in passed if name != "bob"] == [f"ann{number}" for number in range(20)]


async def test_the_last_step_keeps_the_lock_once_no_other_waits() -> None:
    """It comes after all who wait, also if the last of them gives up as it acquires."""
    passed, keeps = list[str](), [True, False]

    def last() -> bool:
        passed.append("last")
        return keeps.pop(0)

    lock = FairLock(before_unlock=last)
    await lock.acquire()
    cancelled = asyncio.create_task(_acquire(lock, "a", passed))
    await asyncio.sleep(0)
    lock.release()
    cancelled.cancel()  # it has just been let in
    await asyncio.gather(cancelled, return_exceptions=True)
    newcomer = asyncio.create_task(_acquire(lock, "b", passed))
    await asyncio.sleep(0)
    assert passed == ["last"]
    lock.release()
    await newcomer
    assert passed == ["last", "b", "last"]
