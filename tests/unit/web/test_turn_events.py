"""A client's view of a turn only grows, and is complete at the end, whatever deltas were lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.events.event import Event, EventType
from gateway.web.compat.openai.items import ResponseEncoder
from gateway.web.compat.openai_messages import InputMessage
from gateway.web.compat.openai_requests import last_user_input
from gateway.web.http.problems import HttpProblem
from gateway.web.stream.turn_events import (
    ApprovalNeeded,
    MessageDone,
    TextDelta,
    TurnEnded,
    TurnEventReader,
    with_heartbeat,
)


def event(kind: EventType, turn: str = "trn_1", **data: Any) -> Event:
    """Return an event of a turn."""
    return Event.now(kind, "cnv_1", data, turn=turn)


def delta(part: int, text: str, *, attempt: int = 1) -> Event:
    """Return a piece of the message `msg_1`."""
    return event(EventType.MESSAGE_DELTA, message="msg_1", part=part, text=text, attempt=attempt)


def completed(text: str) -> Event:
    """Return the completed message `msg_1`."""
    return event(EventType.MESSAGE_COMPLETED, message="msg_1", role="assistant", text=text)


def emitted_text(*events: Event) -> str:
    """Return the text that a listener is handed on, all in all."""
    listening, text = TurnEventReader(turn="trn_1"), ""
    for seq, one in enumerate(events):
        text += "".join(
            received.text for received in listening.read(one, seq) if isinstance(received, TextDelta)
        )
    return text


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_lost_pieces_are_made_up_for(pieces: list[str], lost: set[int]) -> None:
    """The whole message has been sent once it is complete, whichever deltas never came."""
    deltas = [delta(part, text) for part, text in enumerate(pieces) if part not in lost]
    assert emitted_text(*deltas, completed("".join(pieces))) == "".join(pieces)


def test_another_attempt_repeats_nothing() -> None:
    """A message that is generated again after a crash is sent to its end, without repeating text."""
    again = [delta(0, "one ", attempt=2), delta(1, "two", attempt=2)]
    assert emitted_text(delta(0, "one "), *again, completed("one two")) == "one two"


def test_another_attempt_with_another_text_is_sent_whole() -> None:
    """Sent text cannot be withdrawn, so a different message follows it."""
    assert emitted_text(delta(0, "one"), delta(0, "two", attempt=2), completed("two")) == "one\n\ntwo"


def test_other_turns_are_not_received_until_one_takes_this_over() -> None:
    """A turn that another one took in is answered by that one."""
    listening = TurnEventReader(turn="trn_1")
    other = event(EventType.MESSAGE_COMPLETED, "trn_2", message="msg_2", role="assistant", text="both")
    assert not list(listening.read(other, 1))
    assert not list(listening.read(event(EventType.TURN_COMPLETED, merged_into="trn_2"), 2))
    assert [type(one) for one in listening.read(other, 3)] == [TextDelta, MessageDone]
    assert list(listening.read(event(EventType.TURN_COMPLETED, "trn_2"), 4)) == [
        TurnEnded(turn="trn_2", seq=4)
    ]


def test_a_question_to_people_is_received() -> None:
    """An approval request is sent with its command."""
    asked = event(EventType.APPROVAL_REQUESTED, approval="apr_1", command="rm x")
    assert list(TurnEventReader(turn="trn_1").read(asked, 7)) == [
        ApprovalNeeded(approval="apr_1", command="rm x", seq=7)
    ]


async def test_a_silent_stream_pulses_and_can_be_cut() -> None:
    """None comes while nothing else does; a cut ends it though nothing ever came."""
    never, cut = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def silent() -> AsyncIterator[int]:
        await never.wait()
        yield 1

    beats = 0
    async for item in with_heartbeat(silent(), cut, interval=0.001):
        assert item is None
        beats += 1
        if beats == 3:
            cut.set_result(None)
    assert beats == 3


def test_nothing_said_is_refused() -> None:
    """A request that ends with an assistant's words, or with none, asks nothing."""
    for messages in ([InputMessage(role="user", content="")], [InputMessage(role="assistant", content="x")]):
        with pytest.raises(HttpProblem):
            last_user_input(messages, pointer="/messages")


def response_stream(*events: Event) -> list[dict[str, Any]]:
    """Return a response's stream for these events."""
    listening, telling = TurnEventReader(turn="trn_1"), ResponseEncoder({"id": "trn_1"})
    received = [one for seq, event in enumerate(events, 1) for one in listening.read(event, seq)]
    return [shape for one in received for shape in telling.encode(one)]


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6))
def test_a_responses_events_are_numbered_once_and_for_all(pieces: list[str]) -> None:
    """Numbers grow, equal the stream's seq, and are the same on every replay."""
    events = [*(delta(part, text) for part, text in enumerate(pieces)), completed("".join(pieces))]
    reported_once = response_stream(*events)
    numbers = [shape["sequence_number"] for shape in reported_once]
    assert numbers == sorted(set(numbers))
    assert {number // 8 for number in numbers} == set(range(1, len(events) + 1))
    assert reported_once == response_stream(*events)
    deltas = [shape["delta"] for shape in reported_once if shape["type"] == "response.output_text.delta"]
    assert deltas == pieces
