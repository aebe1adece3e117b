"""Events of AG-UI, made of a turn's events."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.conversations.questions import PersonQuestion, is_question, parse_question
from gateway.store.turn_state import TurnState
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.compat import openai_ids
from gateway.web.compat.client_calls import AnswerEvent, ClientCalls
from gateway.web.http.problems import HttpProblem
from gateway.web.stream.turn_events import MessageDone, TextDelta, ToolCalled, ToolReturned, TurnDelayed

VERSION = "1.0"
RESUME_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "comment": {"type": "string"}},
    "required": ["approved"],
}
"""The JSON Schema of the answer to an interrupt."""


class AguiEncoder:
    """Encodes one run as AG-UI events."""

    def __init__(self, thread: str, run_id: str, *, client_tools: Collection[str] = ()) -> None:
        self._ids = {"threadId": thread, "runId": run_id}
        self._open_message: str | None = None
        self._client_tools = client_tools
        self._client_calls: set[str] = set()
        self._open_calls: dict[str, None] = {}

    def run_started(self, turn: str) -> dict[str, Any]:
        """Return the event that opens the run."""
        about = {"dovecote": {"turnId": turn}}
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION, "metadata": about}

    def encode(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        """Yield the events for a turn event."""
        if isinstance(event, TextDelta):
            yield from self._text_delta(event)
        elif isinstance(event, MessageDone):
            yield from self._end_message()
        elif isinstance(event, ToolCalled) and event.name in self._client_tools:
            self._client_calls.add(event.call)  # the run that ended with this call has shown it
        elif isinstance(event, ToolCalled):
            self._open_calls[event.call] = None
            yield from self._tool_call(event.call, event.name, event.args)
        elif isinstance(event, ToolReturned) and event.call not in self._client_calls:
            self._open_calls.pop(event.call, None)
            yield _tool_result(event.call, event.output)
        elif isinstance(event, TurnDelayed):
            about = {"reason": event.reason, "nextAttempt": event.next_at}
            yield {"type": "CUSTOM", "name": "dovecote.delayed", "value": about}

    def _text_delta(self, event: TextDelta) -> Iterator[dict[str, Any]]:
        if self._open_message != event.message:
            yield from self._end_message()
            self._open_message = event.message
            yield {"type": "TEXT_MESSAGE_START", "messageId": event.message, "role": "assistant"}
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": event.message, "delta": event.text}

    def _end_message(self) -> Iterator[dict[str, Any]]:
        message, self._open_message = self._open_message, None
        if message is not None:
            yield {"type": "TEXT_MESSAGE_END", "messageId": message}

    def _tool_call(self, call: str, name: str, args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._end_message()
        about = {"toolCallId": call}
        yield {"type": "TOOL_CALL_START", **about, "toolCallName": name}
        yield {"type": "TOOL_CALL_ARGS", **about, "delta": json.dumps(dict(args), ensure_ascii=False)}
        yield {"type": "TOOL_CALL_END", **about}

    def run_paused(self, end: ClientCalls) -> Iterator[dict[str, Any]]:
        """Yield the calls of the client's tools, and the end of the run that waits for them."""
        for called in end.calls:
            yield from self._tool_call(openai_ids.from_approval(called.approval), called.name, called.args)
        yield self._run_finished(outcome={"type": "success"})

    def run_interrupted(self, approvals: Sequence[Approval]) -> Iterator[dict[str, Any]]:
        """Yield the events that interrupt the run for these approvals."""
        yield from self._end_message()
        interrupts = [_interrupt(one) for one in approvals]
        yield self._run_finished(outcome={"type": "interrupt", "interrupts": interrupts})

    def run_ended(self, turn: Turn) -> Iterator[dict[str, Any]]:
        """Yield the events that end the run in its turn's state."""
        yield from self._end_message()
        if turn.failure is None:
            yield self._run_finished(result=turn.output, outcome={"type": "success"}, usage=_usage(turn))
            return
        for call in self._open_calls:
            yield _tool_result(call, turn.failure)
        if turn.state is TurnState.FAILED:
            yield self.run_error(turn.failure, "failed")
        else:
            yield self._run_finished(outcome={"type": "cancelled"})

    def run_aborted(self, problem: HttpProblem) -> dict[str, Any]:
        """Return the event that ends a run whose stream failed."""
        return self.run_error(problem.detail, str(problem.status))

    def run_error(self, message: str, code: str) -> dict[str, Any]:
        """Return the event that ends a failed run."""
        return {"type": "RUN_ERROR", "message": message, "code": code}

    def _run_finished(self, **fields: Any) -> dict[str, Any]:
        return {"type": "RUN_FINISHED", **self._ids, **fields}


def _tool_result(call: str, output: str) -> dict[str, Any]:
    about = {"messageId": f"{call}.result", "toolCallId": call}
    return {"type": "TOOL_CALL_RESULT", **about, "content": output, "role": "tool"}


def _interrupt(approval: Approval) -> dict[str, Any]:
    about = {"id": approval.id, "metadata": {"tool": approval.tool, "args": dict(approval.args)}}
    if is_question(approval.tool):
        question = parse_question(approval.args)
        schema = {"type": "object", "properties": {"answer": _answer_schema(question)}}
        return {**about, "reason": "question", "message": question.text, "responseSchema": schema}
    message = f"May {approval.tool} do this?\n{approval.command}"
    return {**about, "reason": "approval", "message": message, "responseSchema": RESUME_SCHEMA}


def _answer_schema(question: PersonQuestion) -> dict[str, Any]:
    if question.form:
        fields = {name: {"type": "string", "description": meaning} for name, meaning in question.form}
        return {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "string", "enum": list(question.choices)} if question.choices else {"type": "string"}


def _usage(turn: Turn) -> list[dict[str, Any]]:
    if not turn.usage or not turn.usage.get("requests"):
        return []
    read, written = int(turn.usage["input_tokens"]), int(turn.usage["output_tokens"])
    counted = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    return [{"model": str(turn.usage.get("model", "")), **counted}]
