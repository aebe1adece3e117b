"""The lock of the one writer: one holder at a time, urgent ones first, none lost when others cancel."""

from __future__ import annotations

import asyncio

from delivery.database.group_commit import FairLock


async def _acquire(door: FairLock, name: str, passed: list[str], *, urgent: bool = False) -> None:
    async with door.acquire(urgent=urgent):
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
        async with door.acquire(urgent=False):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(enter() for _ in range(50)))


async def test_who_gives_up_waiting_stops_nobody() -> None:
    """A waiter that is cancelled, before or at the moment it acquires, leaves the lock to the next."""
    door, passed = FairLock(), list[str]()
    async with door.acquire(urgent=False):
        tasks = [asyncio.create_task(_acquire(door, name, passed)) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        tasks[0].cancel()
    tasks[1].cancel()  # it has just been let in
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == ["c"]
    await _acquire(door, "d", passed)
    assert passed == ["c", "d"]
