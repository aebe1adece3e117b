"""Rooms that are still to be read: stored, read again until that succeeds, then forgotten."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from channels.receiving.unread_rooms import UnreadRooms
from channels.testing.memory_state import MemoryChannelState


async def _read_all(rooms: UnreadRooms, *, failures: int = 0) -> list[tuple[str, str]]:
    """Read until no room is left; the first reads fail. Return what was read, with the failures."""
    calls: list[tuple[str, str]] = []
    are_read = asyncio.Event()

    async def read(room: str, note: str) -> None:
        calls.append((room, note))
        if len(calls) <= failures:
            raise OSError("the platform does not answer")
        are_read.set()

    task = asyncio.create_task(rooms.run(read))
    async with asyncio.timeout(10):
        await are_read.wait()
        while [room for room, _ in calls if room in rooms]:  # noqa: ASYNC110 - the state is written after the read
            await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return calls


async def test_a_room_is_read_until_that_succeeds() -> None:
    """The first note stays, and afterwards the room may be added with another one."""
    state = MemoryChannelState()
    rooms = UnreadRooms(state, delays=(0.0,))
    await rooms.load()
    await rooms.add("a", "1")
    await rooms.add("a", "2")
    assert await _read_all(rooms, failures=2) == [("a", "1")] * 3
    assert "a" not in rooms
    await rooms.add("a", "3")
    assert await _read_all(rooms) == [("a", "3")]


async def test_stored_rooms_are_read_by_the_next_process() -> None:
    """A room that was read before is not read once more."""
    state = MemoryChannelState()
    earlier = UnreadRooms(state, delays=(0.0,))
    await earlier.add("read", "1")
    await _read_all(earlier)
    await earlier.add("unread", "2")
    later = UnreadRooms(state, delays=(0.0,))
    await later.load()
    assert ("unread" in later, "read" in later) == (True, False)
    assert await _read_all(later) == [("unread", "2")]
