"""`POST /agui`: AG-UI 1.0, for user interfaces that speak it. A thread is a conversation, a run is a turn.

A run that needs a person's decision ends with an interrupt for each approval; the run that answers them
continues the same turn. https://docs.ag-ui.com
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, StrictStr, model_validator

from gateway.conversations.approvals import AlreadyDecided, ApprovalNotFound
from gateway.records.fields import Name
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turns as store
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.compat.ask import (
    STREAM_INTERRUPTED,
    SseWriter,
    ask,
    open_events,
    stream_sse,
    turn_events,
)
from gateway.web.compat.openai_requests import (
    InlineOrUrl,
    InputMessage,
    LenientRequest,
    NoTools,
    Text,
    last_user_input,
    last_user_messages,
)
from gateway.web.compat.request_identity import run_identity
from gateway.web.http import attachments
from gateway.web.http.attachments import AttachmentCreate
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import HttpProblem, invalid, not_found
from gateway.web.http.route import ApiCall, ApiRoute, RequestModel
from gateway.web.stream.turn_events import (
    ApprovalNeeded,
    MessageDone,
    TextDelta,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnEvent,
    TurnEventReader,
    replay_turn,
)
from sandbox.config import ConfigProblem as Fault

VERSION = "1.0"
RESUME_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "comment": {"type": "string"}},
    "required": ["approved"],
}
"""The JSON Schema of the answer to an interrupt."""


TEXT_ROLES: dict[str, Literal["system", "developer", "user", "assistant"]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}


class AguiSource(LenientRequest):
    """The bytes of a part: inline as base64, or a link to a stored file."""

    type: Literal["data", "url"]
    value: InlineOrUrl
    mimeType: StrictStr = ""


class AguiPart(LenientRequest):
    """A part of a message."""

    type: StrictStr
    text: Text = ""
    source: AguiSource | None = None


class AguiMessage(LenientRequest):
    """A message of the thread; the content of tools, activities and reasoning is ignored."""

    role: StrictStr
    content: Text | tuple[AguiPart, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_other_content(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        role = given.get("role")
        return given if isinstance(role, str) and role in TEXT_ROLES else {**given, "content": None}

    @property
    def parts(self) -> Sequence[AguiPart]:
        """The parts of the content."""
        if isinstance(self.content, str):
            return [AguiPart(type="text", text=self.content)]
        return self.content or ()


class ApprovalPayload(LenientRequest):
    """A person's decision."""

    approved: bool = False
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""


class AguiResume(LenientRequest):
    """The answer to an interrupt."""

    interruptId: Annotated[StrictStr, Field(min_length=1, max_length=60)]
    status: Literal["resolved", "cancelled"]
    payload: ApprovalPayload | bool | None = None

    @property
    def approved(self) -> bool:
        """Whether the call is approved; only `true` approves."""
        approved = self.payload.approved if isinstance(self.payload, ApprovalPayload) else self.payload
        return self.status == "resolved" and approved is True


class RunAgentInput(LenientRequest):
    """The body that starts a run."""

    threadId: Name
    runId: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    messages: Annotated[tuple[AguiMessage, ...], Field(max_length=1000)]
    resume: Annotated[tuple[AguiResume, ...], Field(max_length=100)] | None = None
    tools: NoTools = None


class AgentQuery(RequestModel):
    """The agent of the run; by default the thread's, else the default agent."""

    agent: Name | None = None


async def run(call: ApiCall[RunAgentInput, AgentQuery]) -> web.StreamResponse:
    """Start a run or continue an interrupted one, and stream its events."""
    if call.body.resume:
        turn, given = await _resume(call, call.body.resume)
    else:
        turn, given = await _start(call)
    encoder = AguiEncoder(call.body.threadId, call.body.runId)

    async def tell(sent: SseWriter) -> None:
        await sent.send(encoder.run_started(turn))
        async with open_events(call, given) as events:
            await _write_events(call, sent, encoder, events)

    return await stream_sse(call.request, tell, encoder.run_aborted)


async def _start(call: ApiCall[RunAgentInput, AgentQuery]) -> tuple[str, AsyncGenerator[TurnEvent, None]]:
    messages = [message for message in call.body.messages if message.role in TEXT_ROLES]
    inputs = [InputMessage(role=TEXT_ROLES[message.role], content=_text(message)) for message in messages]
    now = messages[len(messages) - len(last_user_messages(inputs)) :]
    files = [file for message in now for file in _files(message)]
    text, _ = last_user_input(inputs, standalone=False, pointer="/messages", has_files=bool(files))
    approvals = await ask(
        call,
        agent=call.query.agent,
        conversation=call.body.threadId,
        text=text,
        files=files,
        pointer="/messages",
        identity=run_identity(call.body.threadId, call.body.runId, repr(call.body.messages)),
    )
    return approvals.turn, turn_events(call, approvals)


def _text(message: AguiMessage) -> str:
    return "\n".join(part.text for part in message.parts if part.text)


def _files(message: AguiMessage) -> list[AttachmentCreate]:
    sources = [(part.type, part.source) for part in message.parts if part.source is not None]
    return [_file(place, kind, source) for place, (kind, source) in enumerate(sources, 1)]


def _file(index: int, kind: str, source: AguiSource) -> AttachmentCreate:
    ending = source.mimeType.rpartition("/")[2].partition("+")[0] or "bin"
    name = f"{kind[:60]}-{index}.{ending[:20]}"
    if source.type == "data":
        return AttachmentCreate(name=name, type=source.mimeType[:100], content=source.value)
    if len(source.value) > attachments.MAX_URL_LENGTH:
        raise invalid(
            [Fault(pointer="/messages", detail="the url must be a link to a stored file of this gateway")]
        )
    return AttachmentCreate(name=name, url=source.value)


async def _resume(
    call: ApiCall[RunAgentInput, AgentQuery], resumes: Sequence[AguiResume]
) -> tuple[str, AsyncGenerator[TurnEvent, None]]:
    """Decide the approvals as the interrupts were answered, and follow the turn after them.

    An approval that was already decided keeps its decision.
    """
    approvals = [await _require_approval(call, answer.interruptId) for answer in resumes]
    if len({approval.turn for approval in approvals}) != 1:
        raise invalid([Fault(pointer="/resume", detail="all interrupts must be of one run")])
    for answer, approval in zip(resumes, approvals, strict=True):
        comment = answer.payload.comment if isinstance(answer.payload, ApprovalPayload) else ""
        try:
            await call.services.approvals.decide(
                call.account, approval.id, approved=answer.approved, by=call.principal.key, comment=comment
            )
        except (AlreadyDecided, ApprovalNotFound):
            continue
    turn = approvals[0].turn
    given = replay_turn(
        call.services.stream, approvals[0].conversation, TurnEventReader(turn=turn), expired=False
    )
    return turn, _after_approvals(given, {approval.id for approval in approvals})


async def _require_approval(call: ApiCall[RunAgentInput, AgentQuery], approval_id: str) -> Approval:
    async with call.context.database.read() as connection:
        found = await approval_store.get(connection, call.account, approval_id)
    if found is None:
        raise not_found("there is no such interrupt in this account")
    return found


async def _after_approvals(
    events: AsyncGenerator[TurnEvent, None], approvals: Collection[str]
) -> AsyncGenerator[TurnEvent, None]:
    """Yield the events after these approvals were requested, and the end in any case."""
    before = set(approvals)
    async with aclosing(events) as heard:
        async for one in heard:
            if not before or isinstance(one, TurnEnded):
                yield one
            elif isinstance(one, ApprovalNeeded):
                before.discard(one.approval)


async def _write_events(
    call: ApiCall[Any, Any], writer: SseWriter, encoder: AguiEncoder, events: AsyncIterator[TurnEvent | None]
) -> None:
    async for one in events:
        if one is None:
            await writer.heartbeat()
        elif isinstance(one, TurnEnded):
            turn = await _require_turn(call, one.turn)
            return await _send_all(writer, encoder.run_ended(turn))
        elif isinstance(one, ApprovalNeeded):
            if waiting := await _pending_approvals(call, one.approval):
                return await _send_all(writer, encoder.run_interrupted(waiting))
        else:
            await _send_all(writer, encoder.encode(one))
    raise HttpProblem(503, STREAM_INTERRUPTED)


async def _send_all(writer: SseWriter, shapes: Iterator[dict[str, Any]]) -> None:
    for shape in shapes:
        await writer.send(shape)


async def _require_turn(call: ApiCall[Any, Any], turn: str) -> Turn:
    async with call.context.database.read() as connection:
        found = await store.get(connection, call.account, turn)
    if found is None:
        raise not_found("the turn was deleted")
    return found


async def _pending_approvals(call: ApiCall[Any, Any], approval: str) -> list[Approval]:
    """Return the pending approvals of an approval's turn."""
    async with call.context.database.read() as connection:
        found = await approval_store.get(connection, call.account, approval)
        approvals = await approval_store.list_for_turn(connection, found.turn) if found else []
    return [one for one in approvals if one.state == "pending"]


class AguiEncoder:
    """Encodes one run as AG-UI events."""

    def __init__(self, thread: str, run_id: str) -> None:
        self._ids = {"threadId": thread, "runId": run_id}
        self._open_message: str | None = None

    def run_started(self, turn: str) -> dict[str, Any]:
        """Return the event that opens the run."""
        about = {"dovecote": {"turnId": turn}}
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION, "metadata": about}

    def encode(self, event: TurnEvent) -> Iterator[dict[str, Any]]:
        """Yield the events for a turn event."""
        if isinstance(event, TextDelta):
            yield from self._text_delta(event)
        elif isinstance(event, MessageDone):
            yield from self._end_message()
        elif isinstance(event, ToolCalled):
            yield from self._tool_call(event)
        elif isinstance(event, ToolReturned):
            about = {"messageId": f"{event.call}.result", "toolCallId": event.call}
            yield {"type": "TOOL_CALL_RESULT", **about, "content": event.output, "role": "tool"}

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

    def _tool_call(self, event: ToolCalled) -> Iterator[dict[str, Any]]:
        yield from self._end_message()
        about = {"toolCallId": event.call}
        yield {"type": "TOOL_CALL_START", **about, "toolCallName": event.name}
        yield {"type": "TOOL_CALL_ARGS", **about, "delta": json.dumps(dict(event.args), ensure_ascii=False)}
        yield {"type": "TOOL_CALL_END", **about}

    def run_interrupted(self, approvals: Sequence[Approval]) -> Iterator[dict[str, Any]]:
        """Yield the events that interrupt the run for these approvals."""
        yield from self._end_message()
        interrupts = [
            {
                "id": one.id,
                "reason": "approval",
                "message": f"May {one.tool} do this?\n{one.command}",
                "responseSchema": RESUME_SCHEMA,
                "metadata": {"tool": one.tool, "args": dict(one.args)},
            }
            for one in approvals
        ]
        yield self._run_finished(outcome={"type": "interrupt", "interrupts": interrupts})

    def run_ended(self, turn: Turn) -> Iterator[dict[str, Any]]:
        """Yield the events that end the run in its turn's state."""
        yield from self._end_message()
        if turn.state is TurnState.FAILED:
            yield self.run_error(turn.error or "the turn failed", "failed")
        elif turn.state is TurnState.CANCELLED:
            yield self._run_finished(outcome={"type": "cancelled"})
        else:
            yield self._run_finished(result=turn.output, outcome={"type": "success"}, usage=_usage(turn))

    def run_aborted(self, problem: HttpProblem) -> dict[str, Any]:
        """Return the event that ends a run whose stream failed."""
        return self.run_error(problem.detail, str(problem.status))

    def run_error(self, message: str, code: str) -> dict[str, Any]:
        """Return the event that ends a failed run."""
        return {"type": "RUN_ERROR", "message": message, "code": code}

    def _run_finished(self, **fields: Any) -> dict[str, Any]:
        return {"type": "RUN_FINISHED", **self._ids, **fields}


def _usage(turn: Turn) -> list[dict[str, Any]]:
    if not turn.usage or not turn.usage.get("requests"):
        return []
    read, written = int(turn.usage["input_tokens"]), int(turn.usage["output_tokens"])
    counted = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    return [{"model": str(turn.usage.get("model", "")), **counted}]


ROUTES = (
    ApiRoute(
        method="POST",
        path="/agui",
        access=KeyAccess("chat"),
        handler=run,
        summary="run an agent over AG-UI",
        request_model=RunAgentInput,
        query_model=AgentQuery,
        media_type="text/event-stream",
        streams=lambda _body: True,
        error_responses={409: "the thread belongs to another agent"},
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="agui",
    ),
)
"""The routes of this module."""
