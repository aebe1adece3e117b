"""Tool calls that a turn left without a result end with the turn, for editors and pages that show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from delivery.events.event import Event, EventType
from gateway.cli.acp.updates import UpdateEncoder
from gateway.cli.terminal.transcript import Transcript
from gateway.store.turn_state import TurnState
from gateway.store.turns.turns import Turn
from gateway.web.compat.agui.encoder import AguiEncoder
from gateway.web.compat.ui.chunks import UiEncoder
from gateway.web.stream.turn_events import ToolCalled, TurnEventReader

CALL = ToolCalled(call="trn_1.c1", name="bash", args={"command": "sleep 60"}, seq=1)
NOW = datetime(2026, 11, 30, tzinfo=UTC)
ENDS = pytest.mark.parametrize(
    ("state", "error", "shown"),
    [
        (TurnState.CANCELLED, None, "the turn was cancelled"),
        (TurnState.FAILED, "no budget", "no budget"),
        (TurnState.FAILED, None, "the turn failed"),
    ],
)


def turn(state: TurnState, error: str | None = None) -> Turn:
    """Return a turn in a state."""
    return Turn(
        id="trn_1",
        account="acc_1",
        conversation="cnv_1",
        agent="default",
        trigger="message",
        input="!sleep 60",
        state=state,
        error=error,
        created_at=NOW,
    )


def event(kind: EventType, turn: str = "trn_1", **data: Any) -> Event:
    """Return an event of a turn."""
    return Event.now(kind, "cnv_1", data, turn=turn)


@ENDS
def test_the_ai_sdk_gets_an_error_as_the_result(state: TurnState, error: str | None, shown: str) -> None:
    """Before the chunk that ends the message."""
    encoder = UiEncoder("trn_1", "cnv_1")
    list(encoder.encode(CALL))
    failed, last = encoder.ended(turn(state, error))
    assert failed["type"] == "tool-output-error"
    assert (failed["toolCallId"], failed["errorText"]) == (CALL.call, shown)
    assert last == (
        {"type": "abort"} if state is TurnState.CANCELLED else {"type": "error", "errorText": shown}
    )


@ENDS
def test_agui_gets_the_reason_as_the_result(state: TurnState, error: str | None, shown: str) -> None:
    """Before the event that ends the run."""
    encoder = AguiEncoder("thread", "run")
    list(encoder.encode(CALL))
    result, last = encoder.run_ended(turn(state, error))
    assert (result["type"], result["toolCallId"]) == ("TOOL_CALL_RESULT", CALL.call)
    assert result["content"] == shown
    assert last["type"] == ("RUN_FINISHED" if state is TurnState.CANCELLED else "RUN_ERROR")


def test_an_editor_gets_a_failed_call_of_the_turn_that_ended_alone() -> None:
    """The calls of other turns go on; a call that has its result ends once."""
    encoder = UpdateEncoder()
    readers = {name: TurnEventReader(turn=name) for name in ("trn_1", "trn_2")}

    def updates(given: Event) -> list[tuple[Any, Any]]:
        read = readers[str(given.turn)].read(given, 1)
        return [
            (one.get("toolCallId"), one.get("status")) for item in read for one in encoder.encode(item, given)
        ]

    for name in ("trn_1", "trn_2"):
        for call in ("a", "b"):
            updates(event(EventType.TOOL_CALLED, name, call=call, name="bash", args={}))
    assert updates(event(EventType.TOOL_COMPLETED, call="a", output="")) == [("trn_1.a", "completed")]
    assert updates(event(EventType.TURN_CANCELLED)) == [("trn_1.b", "failed")]
    ended = updates(event(EventType.TURN_FAILED, "trn_2", error="no"))
    assert ended == [("trn_2.a", "failed"), ("trn_2.b", "failed")]


def test_an_editor_sees_delays_as_thoughts() -> None:
    """The reason, and the next attempt of one that failed."""
    reader, encoder = TurnEventReader(turn="trn_1"), UpdateEncoder()
    failed = event(EventType.TURN_RETRYING, error="no answer", at="2026-11-30T12:00:00Z")
    waits = event(EventType.TURN_WAITING, reason="starting the sandbox")
    shown = [
        update
        for one in (failed, waits)
        for item in reader.read(one, 1)
        for update in encoder.encode(item, one)
    ]
    assert [update["sessionUpdate"] for update in shown] == ["agent_thought_chunk"] * 2
    assert [update["content"]["text"] for update in shown] == [
        "no answer; next attempt at 2026-11-30T12:00:00Z\n",
        "still starting the sandbox\n",
    ]


def test_a_terminal_says_that_a_request_is_no_longer_needed() -> None:
    """A person who looks at an approval or a question sees that its turn has ended."""
    for kind in ("approval.expired", "question.expired"):
        shown = Transcript().render({"type": kind, "data": {"approval": "apr_1", "ended": "cancelled"}})
        assert shown == "  apr_1: no longer needed, the turn has ended\n"
