"""The model agent's stored messages: what was stored is read again, also by later versions."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterator, KeysView
from dataclasses import replace
from itertools import pairwise
from operator import is_
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.clients.errors import ModelCallError
from gateway.agents.clients.http import ModelAddress, ModelHttp
from gateway.agents.clients.messages import (
    ChatMessage,
    ChatPart,
    arguments,
    request,
    user_prompt,
)
from gateway.agents.clients.openai_chat import OpenAIChat
from gateway.agents.clients.port import EarlierTurn, ModelQuery
from gateway.agents.history import (
    HistoryEntry,
    UnreadableHistory,
    decode_entry,
    decode_progress,
    effective,
    encode_entry,
)
from gateway.agents.model.state import TURNS_PER_GROUP, AgentState, encode, initial_state, resume
from gateway.agents.port import AgentError, ToolSpec
from model_messages import conversation_of, exchanges, response, texts, tool_call

RECORDED = sorted((Path(__file__).parent / "model_histories").glob("*.state"))


def stored(*questions: str, notes: tuple[str, ...] = (), replaces: bool = False) -> HistoryEntry:
    """Return an entry as it comes from the database."""
    messages = conversation_of([(asked, "so be it", {}) for asked in questions])
    entry = AgentState(messages=messages, notes=list(notes)).to_entry()
    loaded = decode_entry(encode_entry(replace(entry, replaces=replaces)))
    assert loaded is not None
    return loaded


def prompts(messages: list[ChatMessage]) -> list[object]:
    """Return the users' prompts among messages."""
    parts = [part for message in messages for part in message["parts"]]
    return [part["content"] for part in parts if part["part_kind"] == "user-prompt"]


@given(st.lists(exchanges, max_size=4), st.lists(texts, max_size=3), st.integers(0, 9))
def test_progress_survives_its_bytes(
    exchanges: list[tuple[str, str, dict[str, object]]], notes: list[str], repeats: int
) -> None:
    """Messages, notes and the loop guard's count are restored, without the instructions."""
    progress = AgentState(messages=conversation_of(exchanges), notes=notes, repeats=repeats)
    loaded = resume(encode(progress), ())
    assert loaded is not None
    for message in progress.messages:
        message.pop("instructions", None)
    assert loaded == progress


def test_a_turn_stores_only_its_own_messages() -> None:
    """The entry and the progress of a turn do not repeat what earlier turns stored."""
    state = initial_state([stored("one", notes=("kept",)), stored("two")])
    state.messages.append(request([user_prompt("three")]))
    state.add_note("new")
    entry = state.to_entry()
    assert len(entry.messages) == 1
    assert (entry.notes, entry.replaces) == (("new",), False)
    assert state.all_notes == ["kept", "new"]
    saved = decode_progress(encode(state))
    assert saved is not None
    assert len(saved.entry.messages) == 1


def test_a_conversation_whose_beginning_changed_is_stored_whole() -> None:
    """After a compaction the turn's entry replaces the earlier ones, also when a later attempt ends it."""
    history = [stored("one", notes=("kept",)), stored("two")]
    state = initial_state(history)
    state.messages = [
        request([user_prompt("memory")]),
        response("yes"),
    ]
    state.add_note("new")
    assert state.to_entry().replaces
    assert state.to_entry().notes == ("kept", "new")
    resumed = resume(encode(state), history)
    assert resumed is not None
    assert prompts(resumed.messages) == ["memory"]
    assert resumed.to_entry().replaces
    assert prompts(initial_state([*history, resumed.to_entry(), stored("three")]).messages) == [
        "memory",
        "three",
    ]


def test_resumed_progress_follows_the_history() -> None:
    """An attempt that resumes has the earlier turns' messages, then its own."""
    history = [stored("one"), stored("two")]
    state = initial_state(history)
    state.messages.append(request([user_prompt("three")]))
    resumed = resume(encode(state), [stored("one"), stored("two")])
    assert resumed is not None
    assert prompts(resumed.messages) == ["one", "two", "three"]
    assert len(resumed.to_entry().messages) == 1


def test_entries_are_validated_once() -> None:
    """Two turns that start at the same entries share the messages made of them."""
    history = [stored("one"), stored("two")]
    first, second = initial_state(history), initial_state(history)
    assert all(one is other for one, other in zip(first.messages, second.messages, strict=True))


def test_tokens_are_estimated_as_before() -> None:
    """The estimate of a continued conversation is the sum over all its messages."""
    state = initial_state([stored("one " * 50), stored("two " * 70)])
    state.messages.append(request([user_prompt("three " * 90)]))
    assert state.estimate_tokens() == AgentState(messages=state.messages).estimate_tokens()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_histories_are_still_read(path: Path) -> None:
    """Every state ever recorded loads, as a turn's progress and as an entry of the history."""
    stored = path.read_bytes()
    progress = resume(stored, ())
    assert progress is not None
    assert progress.messages
    entry = decode_entry(stored)
    assert entry is not None
    history = initial_state([entry])
    assert history.usage.requests == 0
    assert history.waiting is None


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_recordings_of_every_kind_are_kept(version: str) -> None:
    """A broken-off, a waiting, a finished and a compacted conversation are among the recordings."""
    kinds = {path.stem.split("-")[1] for path in RECORDED if path.stem.startswith(version)}
    assert kinds >= {"broken_off", "asked", "finished", "compacted"}


def test_a_paused_state_keeps_the_calls_it_waits_for() -> None:
    """The recorded pauses still have their call and that call's arguments."""
    paused = [path for path in RECORDED if "-asked-" in path.stem]
    for path in paused:
        progress = resume(path.read_bytes(), ())
        assert progress is not None
        assert progress.waiting is not None
        assert arguments(progress.waiting[0]) == {"command": "rm -r build"}


def test_a_broken_off_turn_serves_as_history() -> None:
    """Calls that never got a result are closed, so that the next turn's model accepts the messages."""
    for path in [path for path in RECORDED if "-broken_off-" in path.stem]:
        entry = decode_entry(path.read_bytes())
        assert entry is not None
        last = initial_state([entry]).messages[-1]
        assert (last["kind"], last["parts"][0]["part_kind"]) == ("request", "tool-return")


def test_the_history_of_an_earlier_version_replaces_what_was_before() -> None:
    """A whole conversation that an earlier version stored is one entry, and later ones follow it."""
    (path,) = [path for path in RECORDED if path.stem.startswith("v1-finished-")]
    whole = decode_entry(path.read_bytes())
    assert whole is not None
    assert whole.replaces
    assert effective([stored("never"), whole, stored("later")])[0] is whole


@pytest.mark.parametrize("bytes_of_another", [None, b"", b"another agent's bytes", b"{}"])
def test_bytes_of_another_agent_are_no_progress(bytes_of_another: bytes | None) -> None:
    """A conversation that another agent held before starts afresh with this one."""
    assert decode_entry(bytes_of_another) is None
    assert resume(bytes_of_another, ()) is None


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"dovecote-model/2\n{}", "version 2 of its format"),
        (b"dovecote-model/1\n{", "cannot be read"),
        (b'dovecote-model/1\n{"conversation": 7}', "cannot be read"),
        (b"dovecote-model/1", "cannot be read"),
        (b"dovecote-turn/2\n{}", "version 2 of its format"),
        (b"dovecote-turn/1\n[]", "cannot be read"),
        (b'dovecote-turn/1\n{"messages": 7}', "cannot be read"),
    ],
)
def test_unreadable_history_is_said_with_what_to_do(damaged: bytes, words: str) -> None:
    """Damage and a newer format are errors with a remedy, not a silent loss of memory."""
    with pytest.raises(UnreadableHistory, match=words) as caught:
        decode_entry(damaged)
    assert "start a new conversation" in str(caught.value)
    with pytest.raises(AgentError, match=words):
        resume(damaged, ())


def test_messages_that_are_no_messages_are_refused_with_what_to_do() -> None:
    """An entry whose JSON is not of a model's messages fails the turn with advice."""
    entry = decode_entry(b'dovecote-turn/1\n{"messages": [{"kind": "letter"}]}')
    assert entry is not None
    with pytest.raises(AgentError, match="start a new conversation"):
        initial_state([entry])


def test_old_notes_make_room_for_new_ones() -> None:
    """The notes retained after compaction are bounded."""
    progress = AgentState()
    for number in range(200):
        progress.add_note(f"note {number}")
    assert len(progress.notes) == 60
    assert progress.notes[-1] == "note 199"


class CountedMessages(list[ChatMessage]):
    """Messages that count how often they are gone through."""

    reads = 0

    def __iter__(self) -> Iterator[ChatMessage]:
        """Count this pass."""
        self.reads += 1
        return super().__iter__()


def refused(model: str, _status: int, body: str, _after: float | None) -> ModelCallError:
    """Return an error of a model."""
    return ModelCallError(model, body)


def body_of(query: ModelQuery) -> object:
    """Return the request that asks an OpenAI-compatible server."""
    address = ModelAddress(model="m", url="http://model", headers={}, error_of=refused)
    client = OpenAIChat(cast("ModelHttp", None), address, provider="openai", is_strict=False)
    return json.loads(client._body(query))


def thoughtful(answer: str) -> ChatMessage:
    """Return a response with its reasoning, which goes back to the server that gave it."""
    thinking: ChatPart = {"part_kind": "thinking", "content": "let me see", "provider_name": "openai"}
    message = response(answer, tool_call({}, "call_1"))
    message["parts"].insert(0, thinking)
    message["provider_url"] = "http://model"
    return message


@given(st.lists(st.sampled_from(["adds", "replaces", "goes back", "again"]), max_size=12))
def test_a_conversation_that_grows_is_the_one_that_is_read_again(steps: list[str]) -> None:
    """Nothing of an earlier turn remains after a replaced, undone or repeated one."""
    entries: list[HistoryEntry] = []
    for number, step in enumerate(steps):
        if step == "goes back":
            entries = entries[: len(entries) // 2]
        elif step != "again":
            notes = (f"note {number}",)
            entries = [*entries, stored(f"question {number}", notes=notes, replaces=step == "replaces")]
        grown, fresh = initial_state(entries), initial_state([replace(entry) for entry in entries])
        assert grown.messages == fresh.messages
        assert grown.all_notes == fresh.all_notes
        assert grown.estimate_tokens() == fresh.estimate_tokens()
        assert [one for turn in grown.earlier.turns for one in turn.messages] == fresh.messages


def test_the_parts_of_a_long_conversation_are_few_and_kept() -> None:
    """What a turn looks at hardly grows with the turns before it, and older ones stay the same objects."""
    entries = [stored("how?") for _ in range(3 * TURNS_PER_GROUP)]
    states = [initial_state(entries[:count]) for count in range(1, len(entries) + 1)]
    assert max(len(state.earlier.turns) for state in states) < TURNS_PER_GROUP + 3
    for before, after in pairwise(states):
        whole = len(before.messages) // (4 * TURNS_PER_GROUP)
        assert all(map(is_, before.earlier.turns[:whole], after.earlier.turns))
        assert after.messages == [message for turn in after.earlier.turns for message in turn.messages]
    assert sum("conversation" in name for entry in entries for name in entry.derived) == 1


@given(st.lists(exchanges, max_size=4), st.booleans())
def test_earlier_turns_are_sent_as_if_they_were_encoded_again(
    exchanges: list[tuple[str, str, dict[str, object]]], goes_on: bool
) -> None:
    """Whether a request begins with known turns or not, it is the same one, also within a turn."""
    turns = [EarlierTurn(messages=[*conversation_of([one]), thoughtful("ok")]) for one in exchanges]
    own = [thoughtful("so be it")] if goes_on else [request([user_prompt("and now?")]), thoughtful("yes")]
    messages = [message for turn in turns for message in turn.messages] + own
    query = ModelQuery(messages=messages, instructions="Be brief.", earlier=turns)
    assert body_of(query) == body_of(replace(query, earlier=()))


def test_a_request_encodes_earlier_turns_once() -> None:
    """What a turn costs does not grow with the turns before it."""
    counted = CountedMessages(conversation_of([("how?", "so", {})]))
    query = ModelQuery(
        messages=[*counted, request([user_prompt("again")])], earlier=[EarlierTurn(messages=counted)]
    )
    counted.reads = 0
    assert body_of(query) == body_of(query)
    assert counted.reads == 1


class CountedSchema(UserDict[str, object]):
    """A schema that counts how often it is read to be encoded."""

    reads = 0

    def keys(self) -> KeysView[str]:
        """Return the names."""
        self.reads += 1
        return super().keys()


def test_a_request_encodes_its_tools_once() -> None:
    """Equal tools are encoded once, and changed ones of the same names again."""
    schema = CountedSchema(type="object", properties={"path": {"type": "string"}})
    changed = {**schema, "required": ["path"]}
    messages = [request([user_prompt("how?")])]
    first, again, other = (
        ModelQuery(messages=messages, tools=(ToolSpec(name="read", description="Read", schema=one),))
        for one in (schema, schema, changed)
    )
    schema.reads = 0
    assert body_of(first) == body_of(again)
    assert schema.reads == 1
    (sent,) = cast("dict[str, Any]", body_of(other))["tools"]
    assert sent["function"]["parameters"]["required"] == ["path"]
