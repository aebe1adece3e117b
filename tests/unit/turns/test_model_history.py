"""The model agent's bytes: what was stored is read again, also by later versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from gateway.agents.model.state import AgentState, decode, decode_history, encode, encode_history
from gateway.agents.port import AgentError

RECORDED = sorted((Path(__file__).parent / "model_histories").glob("*.state"))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
exchanges = st.tuples(texts, texts, st.dictionaries(texts, st.none() | st.integers() | texts, max_size=3))


def conversation_of(exchanges: list[tuple[str, str, dict[str, object]]]) -> list[ModelMessage]:
    """Return messages of turns that each called a tool once."""
    messages: list[ModelMessage] = []
    for number, (asked, answered, args) in enumerate(exchanges):
        call = ToolCallPart(tool_name="bash", args=args, tool_call_id=f"call_{number}")
        result = ToolReturnPart(tool_name="bash", content=answered, tool_call_id=f"call_{number}")
        messages += [
            ModelRequest(parts=[UserPromptPart(content=asked)], instructions="Be brief."),
            ModelResponse(parts=[call]),
            ModelRequest(parts=[result]),
            ModelResponse(parts=[TextPart(content=answered)]),
        ]
    return messages


@given(st.lists(exchanges, max_size=4), st.lists(texts, max_size=3), st.integers(0, 9))
def test_progress_survives_its_bytes(
    exchanges: list[tuple[str, str, dict[str, object]]], notes: list[str], repeats: int
) -> None:
    """Messages, notes and the loop guard's count are restored, without the instructions."""
    progress = AgentState(
        conversation=Conversation(messages=conversation_of(exchanges)), notes=notes, repeats=repeats
    )
    loaded = decode(encode(progress))
    assert loaded is not None
    for message in progress.messages:
        if isinstance(message, ModelRequest):
            message.instructions = None
    assert loaded == progress


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_histories_are_still_read(path: Path) -> None:
    """Every state ever recorded loads, as a turn's progress and as a conversation's history."""
    stored = path.read_bytes()
    progress = decode(stored)
    assert progress is not None
    assert progress.messages
    history = decode_history(stored)
    assert history.usage.requests == 0
    assert history.conversation.deferred_tool_requests is None


def test_recordings_of_every_kind_are_kept() -> None:
    """A broken-off, a waiting, a finished and a compacted conversation are among the recordings."""
    kinds = {path.stem.split("-")[1] for path in RECORDED}
    assert kinds >= {"broken_off", "asked", "finished", "compacted"}


def test_a_paused_state_keeps_the_calls_it_waits_for() -> None:
    """The recorded pause still knows its call and that call's arguments."""
    (path,) = [path for path in RECORDED if "-asked-" in path.stem]
    progress = decode(path.read_bytes())
    assert progress is not None
    requests = progress.conversation.deferred_tool_requests
    assert requests is not None
    assert requests.approvals[0].args_as_dict() == {"command": "rm -r build"}


def test_a_broken_off_turn_serves_as_history() -> None:
    """Calls that never got a result are closed, so that the next turn's model accepts the messages."""
    (path,) = [path for path in RECORDED if "-broken_off-" in path.stem]
    last = decode_history(path.read_bytes()).messages[-1]
    assert isinstance(last, ModelRequest)
    assert isinstance(last.parts[0], ToolReturnPart)


def test_history_leaves_the_turns_counts_behind() -> None:
    """Usage and the loop guard belong to a turn; notes and messages to the conversation."""
    progress = AgentState(
        conversation=Conversation(messages=conversation_of([("a", "b", {})])),
        notes=["ann approved bash"],
        last_call="x",
        repeats=3,
    )
    progress.usage.requests = 7
    history = decode_history(encode_history(progress))
    assert history.usage.requests == 0
    assert (history.last_call, history.repeats) == ("", 0)
    assert history.notes == ["ann approved bash"]
    assert len(history.messages) == 4


@pytest.mark.parametrize("stored", [None, b"", b"another agent's bytes", b"{}"])
def test_no_history_of_ours_is_an_empty_one(stored: bytes | None) -> None:
    """A conversation that another agent held before starts afresh with this one."""
    assert decode_history(stored).messages == []


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (b"dovecote-model/2\n{}", "version 2 of its format"),
        (b"dovecote-model/1\n{", "cannot be read"),
        (b'dovecote-model/1\n{"conversation": 7}', "cannot be read"),
        (b"dovecote-model/1", "cannot be read"),
    ],
)
def test_unreadable_history_is_said_with_what_to_do(stored: bytes, words: str) -> None:
    """Damage and a newer format are errors with a remedy, not a silent loss of memory."""
    with pytest.raises(AgentError, match=words) as caught:
        decode(stored)
    assert "start a new conversation" in str(caught.value)


def test_old_notes_make_room_for_new_ones() -> None:
    """The notes retained after compaction are bounded."""
    progress = AgentState()
    for number in range(200):
        progress.add_note(f"note {number}")
    assert len(progress.notes) == 60
    assert progress.notes[-1] == "note 199"
