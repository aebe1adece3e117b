"""Messages that a client adds between two turns: with the next turn, as its past or as lines."""

from __future__ import annotations

from gateway.agents.client_history import EarlierCall, EarlierMessage
from gateway.agents.history import HistoryEntry
from gateway.conversations.room_context import merge_contexts
from gateway.conversations.supplied_history import (
    added_as_earlier,
    added_entry,
    after_added,
    with_added,
    without_added,
)

CALL = EarlierCall(id="call_1", name="weather", arguments="{}")
ADDED = {
    "msg_1": EarlierMessage(role="user", text="the weather?"),
    "msg_2": EarlierMessage(role="assistant", text="", calls=(CALL,)),
    "msg_3": EarlierMessage(role="tool", text="sunny", call="call_1"),
}
SAID = {"name": "ann", "text": "hi"}


def test_an_entry_of_a_turn_begins_with_them() -> None:
    """Calls have ids of the turn's own; an entry that replaces the history has them already."""
    context = with_added(None, ADDED)
    own = HistoryEntry(messages=({"kind": "request", "parts": []},))
    entry = after_added("trn_1", context, own)
    assert [message["kind"] for message in entry.messages] == ["request", "response", "request", "request"]
    (call,) = entry.messages[1]["parts"]
    assert (call["tool_name"], call["tool_call_id"]) == ("weather", "added_trn_1_1")
    assert entry.messages[2]["parts"][0]["tool_call_id"] == "added_trn_1_1"
    whole = HistoryEntry(messages=own.messages, replaces=True)
    assert after_added("trn_1", context, whole) is whole
    assert after_added("trn_1", {"earlier": [SAID]}, own) is own


def test_they_are_lines_of_a_message_that_a_running_turn_receives() -> None:
    """Its history is fixed, and nothing is lost; calls have no line."""
    context = with_added({"earlier": [SAID]}, ADDED)
    lines = [SAID, {"name": "user", "text": "the weather?"}, {"name": "tool", "text": "sunny"}]
    assert added_as_earlier(context) == {"earlier": lines}
    assert added_as_earlier({"earlier": [SAID]}) == {"earlier": [SAID]}
    assert added_as_earlier(None) is None


def test_contexts_of_two_messages_have_those_of_both() -> None:
    """In their order; the rest of a context is left as it is."""
    first, second = with_added({"earlier": [SAID]}, {"msg_0": ADDED["msg_1"]}), with_added(None, ADDED)
    merged = merge_contexts(first, second)
    assert merged is not None
    assert [one["id"] for one in merged["history"]] == ["msg_0", *ADDED]
    assert without_added(merged) == {"earlier": [SAID]}
    assert added_entry("trn_1", without_added(merged)) is None
