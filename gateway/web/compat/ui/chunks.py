"""Chunks of the UI message stream, made of a turn's events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.store.turn_state import TurnState
from gateway.store.turns.turns import Turn
from gateway.web.compat.client_calls import AnswerEvent
from gateway.web.stream.turn_events import (
    ApprovalNeeded,
    JobChanged,
    MessageDone,
    TextDelta,
    ToolCalled,
    ToolReturned,
    TurnDelayed,
)

Chunk = dict[str, Any]


class UiEncoder:
    """Encodes one answer; its message has the turn's id."""

    def __init__(self, turn: str, conversation: str) -> None:
        self._turn = turn
        self._conversation = conversation
        self._open_text: str | None = None
        self._calls: set[str] = set()
        self._open_calls: dict[str, None] = {}

    def started(self) -> Iterator[Chunk]:
        """Yield the chunks that open the message."""
        about = {"turnId": self._turn, "conversationId": self._conversation}
        yield {"type": "start", "messageId": self._turn, "messageMetadata": about}
        yield {"type": "start-step"}

    def encode(self, event: AnswerEvent) -> Iterator[Chunk]:
        """Yield the chunks of an event."""
        match event:
            case TextDelta():
                yield from self._text_delta(event)
            case MessageDone():
                yield from self._end_text()
            case ToolCalled():
                yield from self._tool_called(event)
            case ToolReturned():
                yield from self._tool_returned(event)
            case ApprovalNeeded():
                about = {"approval": event.approval, "question": event.command}
                yield {"type": "data-approval", "id": event.approval, "data": about}
            case JobChanged():
                job = {"resultId": event.job, "state": event.state, "exitCode": event.exit_code}
                yield {"type": "data-job", "id": event.job, "data": job}
            case TurnDelayed():
                delay = {"reason": event.reason, "nextAttempt": event.next_at}
                yield {"type": "data-delay", "id": self._turn, "data": delay, "transient": True}

    def _text_delta(self, event: TextDelta) -> Iterator[Chunk]:
        if self._open_text != event.message:
            yield from self._end_text()
            self._open_text = event.message
            yield {"type": "text-start", "id": event.message}
        yield {"type": "text-delta", "id": event.message, "delta": event.text}

    def _end_text(self) -> Iterator[Chunk]:
        message, self._open_text = self._open_text, None
        if message is not None:
            yield {"type": "text-end", "id": message}

    def _tool_called(self, event: ToolCalled) -> Iterator[Chunk]:
        if event.call in self._calls:
            return  # another attempt of the turn repeats it
        self._calls.add(event.call)
        self._open_calls[event.call] = None
        yield from self._end_text()
        about = {"toolCallId": event.call, "toolName": event.name, "dynamic": True}
        yield {"type": "tool-input-start", **about}
        yield {"type": "tool-input-available", **about, "input": dict(event.args)}

    def _tool_returned(self, event: ToolReturned) -> Iterator[Chunk]:
        if event.call in self._calls:
            self._open_calls.pop(event.call, None)
            yield {
                "type": "tool-output-available",
                "toolCallId": event.call,
                "output": event.output,
                "dynamic": True,
            }

    def ended(self, turn: Turn) -> Iterator[Chunk]:
        """Yield the chunks that end the message in its turn's state."""
        yield from self._end_text()
        if turn.failure is None:
            yield {"type": "finish-step"}
            yield {"type": "finish"}
            return
        for call in self._open_calls:
            about = {"toolCallId": call, "errorText": turn.failure, "dynamic": True}
            yield {"type": "tool-output-error", **about}
        yield error(turn.failure) if turn.state is TurnState.FAILED else {"type": "abort"}


def error(text: str) -> Chunk:
    """Return the chunk that ends a stream with an error."""
    return {"type": "error", "errorText": text}
