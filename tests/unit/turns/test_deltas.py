"""Deltas: which text of a message is published while it is generated."""

from __future__ import annotations

import asyncio

from delivery.events.event import Event
from gateway.turns.deltas import MAX_BUFFERED, Deltas

TIMEOUT = 10.0


def _deltas() -> tuple[Deltas, asyncio.Queue[Event]]:
    """Return deltas and the queue of the events that they publish."""
    published: asyncio.Queue[Event] = asyncio.Queue()
    return Deltas("cnv_1", "trn_1", 1, publish_transient=published.put), published


async def test_the_first_text_is_published_at_once_and_the_rest_together() -> None:
    """Pieces that follow in quick succession are one event, although the message does not end."""
    deltas, published = _deltas()
    async with deltas:
        await deltas.add("msg_1", "a")
        assert published.get_nowait().data["text"] == "a"
        await deltas.add("msg_1", "b")
        await deltas.add("msg_1", "c")
        async with asyncio.timeout(TIMEOUT):
            event = await published.get()
    assert (event.data["message"], event.data["part"], event.data["text"]) == ("msg_1", 1, "bc")


async def test_text_behind_the_last_delta_is_in_the_complete_message() -> None:
    """It needs no event of its own."""
    deltas, published = _deltas()
    async with deltas:
        await deltas.add("msg_1", "a")
        await deltas.add("msg_1", "b")
        await deltas.close()
    assert published.get_nowait().data["text"] == "a"
    assert published.empty()


async def test_a_full_buffer_is_published_at_once() -> None:
    """Much text does not wait, and text behind it is the next part."""
    deltas, published = _deltas()
    async with deltas:
        await deltas.add("msg_1", "a")
        await deltas.add("msg_1", "b" * MAX_BUFFERED)
        assert [published.get_nowait().data["part"] for _ in range(2)] == [0, 1]


async def test_each_message_begins_with_its_first_part() -> None:
    """Text of a second message is not joined with that of the first one."""
    deltas, published = _deltas()
    async with deltas:
        await deltas.add("msg_1", "a")
        await deltas.close()
        await deltas.add("msg_2", "b")
    found = [published.get_nowait().data for _ in range(2)]
    assert [(one["message"], one["part"], one["text"]) for one in found] == [
        ("msg_1", 0, "a"),
        ("msg_2", 0, "b"),
    ]
