"""Events of a conversation as updates of an editor's session; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from channels.inbox.commands import DESCRIPTIONS, WITH_ARGUMENTS
from delivery.events.event import Event, EventType
from gateway.cli.terminal.transcript import render_tool_call
from gateway.web.stream.turn_events import (
    MESSAGE_SEPARATOR,
    TextDelta,
    ToolCalled,
    ToolReturned,
    TurnDelayed,
    TurnEnded,
    TurnEvent,
)

Update = dict[str, Any]

_KINDS = {
    "bash": "execute",
    "read": "read",
    "stat": "read",
    "view_image": "read",
    "search": "search",
    "glob": "search",
    "grep": "search",
    "write": "edit",
    "edit": "edit",
    "mkdir": "edit",
    "copy": "edit",
    "rename": "move",
    "remove": "delete",
}
"""The kinds of built-in tools; the others are `other`."""


def to_event(frame: Mapping[str, Any]) -> Event | None:
    """Return the event of a frame; None for one of a type that this version does not know."""
    try:
        kind = EventType(frame["type"])
    except ValueError:
        return None
    return Event(
        id=frame["id"],
        type=kind,
        time=datetime.fromisoformat(frame["time"]),
        conversation=frame["conversation"],
        turn=frame.get("turn"),
        data=frame["data"],
        n=frame.get("n"),
    )


class UpdateEncoder:
    """Encodes the events of a session's turns; two messages in a row are separated."""

    def __init__(self) -> None:
        self._message: str | None = None
        self._open_calls: dict[str, str | None] = {}

    def encode(self, event: TurnEvent, source: Event) -> Iterator[Update]:
        """Yield the updates for an event of a turn, which was read from the event `source`."""
        if isinstance(event, TextDelta):
            follows = self._message not in (None, event.message)
            self._message = event.message
            yield text_update(f"{MESSAGE_SEPARATOR}{event.text}" if follows else event.text)
        elif isinstance(event, ToolCalled):
            self._message = None
            self._open_calls[event.call] = source.turn
            call = describe_call(event.call, {"name": event.name, "args": event.args})
            yield {"sessionUpdate": "tool_call", **call, "status": "in_progress"}
        elif isinstance(event, ToolReturned):
            failed = source.data.get("exit_code") or source.data.get("timed_out")
            self._open_calls.pop(event.call, None)
            yield _call_ended(event.call, "failed" if failed else "completed", event.output)
        elif isinstance(event, TurnDelayed):
            yield text_update(f"{event.text}\n", kind="agent_thought_chunk")
        elif isinstance(event, TurnEnded):
            yield from self._end_calls(source)

    def _end_calls(self, end: Event) -> Iterator[Update]:
        """Yield the end of the calls that their turn, which has ended, left without a result."""
        reason = str(end.data.get("error") or "the turn ended before the result")
        for call in [call for call, turn in self._open_calls.items() if turn == end.turn]:
            del self._open_calls[call]
            yield _call_ended(call, "failed", reason)


def commands_update() -> Update:
    """Return the gateway's commands, for the editor's menu."""
    commands: list[Update] = [
        {
            "name": name,
            "description": does,
            **({"input": {"hint": "words"}} if name in WITH_ARGUMENTS else {}),
        }
        for name, does in DESCRIPTIONS.items()
    ]
    return {"sessionUpdate": "available_commands_update", "availableCommands": commands}


def _call_ended(call: str, status: str, output: str) -> Update:
    content = [{"type": "content", "content": _text(output)}]
    return {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status, "content": content}


def text_update(text: str, *, kind: str = "agent_message_chunk") -> Update:
    """Return a piece of a message, or of the agent's thoughts, by the update's name in the protocol."""
    return {"sessionUpdate": kind, "content": _text(text)}


def describe_call(identity: str, about: Mapping[str, Any]) -> Update:
    """Return a tool call with its title, kind and arguments; `about` has `name` or `tool`, and `args`."""
    name = str(about.get("name") or about.get("tool") or "tool")
    return {
        "toolCallId": identity,
        "title": render_tool_call(about),
        "kind": _KINDS.get(name, "other"),
        "rawInput": dict(about.get("args") or {}),
    }


def permission_of(about: Mapping[str, Any]) -> Update:
    """Return the parameters of a request for a permission, or for one of a question's choices."""
    question = _text(str(about.get("question") or about.get("command") or ""))
    call = describe_call(str(about["approval"]), about)
    options = [
        {"optionId": f"choice-{number}", "name": str(choice), "kind": "allow_once"}
        for number, choice in enumerate(about.get("choices") or ())
    ]
    allow = {"optionId": "approve", "name": "Allow", "kind": "allow_once"}
    deny = {"optionId": "deny", "name": "Decline" if options else "Deny", "kind": "reject_once"}
    return {
        "toolCall": {**call, "status": "pending", "content": [{"type": "content", "content": question}]},
        "options": [*(options or [allow]), deny],
    }


def decision_of(about: Mapping[str, Any], outcome: object) -> dict[str, Any] | None:
    """Return the body that decides an approval as a person chose; None without a choice."""
    if not isinstance(outcome, Mapping) or outcome.get("outcome") != "selected":
        return None
    option = str(outcome.get("optionId"))
    choices = {f"choice-{number}": choice for number, choice in enumerate(about.get("choices") or ())}
    if option in choices:
        return {"answer": choices[option]}
    return {"decision": "approve" if option == "approve" and not choices else "deny"}


def _text(text: str) -> Update:
    return {"type": "text", "text": text}
