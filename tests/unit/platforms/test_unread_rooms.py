"""Rooms that are still to be read: stored, read again until that succeeds, then forgotten."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from channels.errors import Unauthorized
from channels.receiving.unread_rooms import PREFIX, UnreadRooms
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


async def test_a_room_that_is_put_while_it_is_read_is_read_once_more() -> None:
    """What was missed after the read began is not skipped, and the note stays stored until then."""
    state = MemoryChannelState()
    rooms = UnreadRooms(state, delays=(0.0,))
    await rooms.put({"a": "1"})
    notes: list[str] = []

    async def read(room: str, note: str) -> None:
        notes.append(note)
        if len(notes) == 1:
            await rooms.put({room: note})

    task = asyncio.create_task(rooms.run(read))
    async with asyncio.timeout(10):
        await rooms.wait_until_read("a")
    task.cancel()
    assert notes == ["1", "1"]
    assert not any((await state.list(PREFIX)).values())


async def test_groups_are_read_at_the_same_time_and_awaited_rooms_first() -> None:
    """A room that is slow holds up its own group alone."""
    rooms = UnreadRooms(MemoryChannelState(), delays=(0.0,), group_of=lambda note: note)
    await rooms.put({"slow": "1", "other": "1", "elsewhere": "2", "wanted": "2"})
    read_rooms: list[str] = []
    waiting = asyncio.create_task(rooms.wait_until_read("wanted"))
    await asyncio.sleep(0)

    async def read(room: str, _note: str) -> None:
        read_rooms.append(room)
        if room == "slow":
            await asyncio.Event().wait()

    task = asyncio.create_task(rooms.run(read))
    async with asyncio.timeout(10):
        await waiting
        await rooms.wait_until_read("elsewhere")
    task.cancel()
    assert read_rooms == ["slow", "wanted", "elsewhere"]


async def test_an_error_of_the_whole_bot_ends_an_attempt() -> None:
    """The next attempt begins with another room, so that none is skipped for ever."""
    rooms = UnreadRooms(MemoryChannelState(), delays=(0.0, 0.0, 3600.0))
    await rooms.put({"a": "1", "b": "1"})
    tried: list[str] = []

    async def read(room: str, _note: str) -> None:
        tried.append(room)
        raise Unauthorized("the token is refused")

    task = asyncio.create_task(rooms.run(read))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    assert tried == ["a", "b"]
    assert ("a" in rooms, "b" in rooms) == (True, True)
