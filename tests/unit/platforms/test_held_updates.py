"""An update waits for what was missed in its room, in order, but not for ever."""

from __future__ import annotations

import asyncio

from channels.receiving.held_updates import MAX_HELD, HeldUpdates
from channels.receiving.unread_rooms import UnreadRooms
from channels.testing.memory_state import MemoryChannelState


class Stored:
    """A store that counts."""

    def __init__(self) -> None:
        self.updates: list[str] = []
        self.changed = asyncio.Event()

    async def store(self, update: str) -> None:
        """Store an update."""
        self.updates.append(update)
        self.changed.set()

    async def wait(self, count: int) -> None:
        """Wait for a number of updates."""
        async with asyncio.timeout(10):
            while len(self.updates) < count:
                self.changed.clear()
                await self.changed.wait()


async def unread_room() -> UnreadRooms:
    """Return unread rooms, with one of them."""
    rooms = UnreadRooms(MemoryChannelState(), delays=(0.0,))
    await rooms.put({"unread": "1"})
    return rooms


async def test_updates_of_an_unread_room_wait_until_it_is_read() -> None:
    """They are stored in their order; those of other rooms do not wait."""
    rooms, stored = await unread_room(), Stored()
    held = HeldUpdates(rooms, stored.store)
    assert [await held.hold(room, room) for room in ("unread", "other", "unread")] == [True, False, True]
    await held.hold("unread", "last")
    assert stored.updates == []

    async def read(room: str, _note: str) -> None:
        await stored.store(f"missed in {room}")

    task = asyncio.create_task(rooms.run(read))
    await stored.wait(4)
    task.cancel()
    assert stored.updates == ["missed in unread", "unread", "unread", "last"]
    assert not await held.hold("unread", "later")


async def test_updates_of_a_room_that_cannot_be_read_are_stored_in_the_end() -> None:
    """After the longest time the room is released, and its further updates do not wait."""
    rooms, stored = await unread_room(), Stored()
    held = HeldUpdates(rooms, stored.store, hold_seconds=0.0)
    assert await held.hold("unread", "first")
    await stored.wait(1)
    await asyncio.sleep(0)
    assert "unread" in rooms
    assert not await held.hold("unread", "second")


async def test_what_waits_is_stored_before_a_room_is_forgotten() -> None:
    """A platform that sends nothing again has the messages in the history to which the room's note leads."""
    rooms, stored = await unread_room(), Stored()
    held = HeldUpdates(rooms, stored.store)
    await held.hold("unread", "first")
    await held.finish("unread")
    assert (stored.updates, "unread" in rooms) == (["first"], True)
    assert not await held.hold("unread", "second")
    await rooms.put({"unread": "2"})
    assert await held.hold("unread", "waits for what was missed next")
    await held.close()


async def test_dropped_updates_are_not_stored() -> None:
    """The platform sends them again."""
    rooms, stored = await unread_room(), Stored()
    held = HeldUpdates(rooms, stored.store)
    await held.hold("unread", "first")
    held.drop()
    await held.hold("unread", "again")
    await held.close()
    assert (stored.updates, await held.hold("unread", "once more")) == ([], True)
    await held.close()


async def test_beyond_the_limit_the_fullest_room_is_stored() -> None:
    """The memory of one bot's held updates is bounded, and no room stops the others."""
    rooms, stored = await unread_room(), Stored()
    await rooms.put({"quiet": "1"})
    held = HeldUpdates(rooms, stored.store)
    await held.hold("quiet", "waits")
    for number in range(MAX_HELD):
        await held.hold("unread", str(number))
        await asyncio.sleep(0)
    await stored.wait(MAX_HELD)
    assert stored.updates == [str(number) for number in range(MAX_HELD)]
    await held.close()
