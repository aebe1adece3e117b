"""Live output of commands: bounded pieces of text, published by time, for each call."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from delivery.events.event import Event, EventType
from gateway.store.turns.turns import Turn
from gateway.tools.live_output import MAX_CALL_TEXT, MAX_TEXT, CallOutput, LiveOutput

TURN = cast("Turn", SimpleNamespace(id="trn_1", conversation="cnv_1", attempt=2))


def test_streams_are_separate_and_characters_whole() -> None:
    """A character that is split between two pieces arrives once; NUL and invalid bytes are replaced."""
    output = CallOutput()
    output.add("stdout", b"one \xc3")
    output.add("stderr", b"\xff\0")
    assert output.take() == {"stdout": "one ", "stderr": "\ufffd\ufffd"}
    output.add("stdout", b"\xa9")
    assert output.take() == {"stdout": "é"}
    assert output.take() == {}


def test_a_flood_is_cut_to_its_end_and_stops() -> None:
    """One event holds the newest output, and a call publishes a limited amount."""
    output = CallOutput()
    output.add("stdout", b"a" * MAX_TEXT + b"end")
    text = output.take()["stdout"]
    assert text.startswith("[…]\n")
    assert text.endswith("end")
    assert len(text) <= MAX_TEXT + 4
    published = 0
    for _ in range(100):
        output.add("stdout", b"b" * MAX_TEXT)
        published += len(output.take().get("stdout", ""))
    assert published <= MAX_CALL_TEXT


async def test_output_is_published_while_the_call_runs() -> None:
    """As a transient event that names call, stream and attempt; a call that ended publishes nothing."""
    events: list[Event] = []
    arrived = asyncio.Event()

    async def publish(event: Event) -> None:
        events.append(event)
        arrived.set()

    live = LiveOutput(TURN, publish, interval=0.01)
    async with live.of_call("call_1") as listener:
        assert listener is not None
        listener("stdout", b"first")
        async with asyncio.timeout(60):
            await arrived.wait()
    listener("stdout", b"late")
    (event,) = events
    assert (event.type, event.turn, event.conversation) == (EventType.TOOL_DELTA, "trn_1", "cnv_1")
    assert dict(event.data) == {"call": "call_1", "stream": "stdout", "text": "first", "attempt": 2}


async def test_without_readers_nothing_is_collected() -> None:
    """A turn without readers gives its commands no listener."""
    anonymous: Any = None
    async with LiveOutput(TURN, anonymous).of_call("call_1") as listener:
        assert listener is None
