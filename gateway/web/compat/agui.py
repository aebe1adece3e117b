"""`POST /agui`: AG-UI 1.0, for user interfaces that speak it. A thread is a conversation, a run is a turn.

A run that needs a person's decision ends with an interrupt for each approval; the run that answers them goes
on with the same turn. https://docs.ag-ui.com
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
    reject_idempotency_key,
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
"""What an interrupt is answered with, as a JSON Schema."""


TEXT_ROLES: dict[str, Literal["system", "developer", "user", "assistant"]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}


class AguiSource(LenientRequest):
    """Where the bytes of a part are: here in base64, or behind a link of ours."""

    type: Literal["data", "url"]
    value: InlineOrUrl
    mimeType: StrictStr = ""


class AguiPart(LenientRequest):
    """A piece of a message."""

    type: StrictStr
    text: Text = ""
    source: AguiSource | None = None


class AguiMessage(LenientRequest):
    """A message of the thread; those that are no talk (tools, activities, reasoning) are left out."""

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
        """The pieces of it."""
        if isinstance(self.content, str):
            return [AguiPart(type="text", text=self.content)]
        return self.content or ()


class ApprovalPayload(LenientRequest):
    """What a person decided."""

    approved: bool = False
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""


class AguiResume(LenientRequest):
    """The answer to an interrupt."""

    interruptId: Annotated[StrictStr, Field(min_length=1, max_length=60)]
    status: Literal["resolved", "cancelled"]
    payload: ApprovalPayload | bool | None = None

    @property
    def approved(self) -> bool:
        """Whether it lets the call be carried out; nothing less than a clear yes does."""
        told = self.payload.approved if isinstance(self.payload, ApprovalPayload) else self.payload
        return self.status == "resolved" and told is True


class RunAgentInput(LenientRequest):
    """What a run is started with."""

    threadId: Name
    runId: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    messages: Annotated[tuple[AguiMessage, ...], Field(max_length=1000)]
    resume: Annotated[tuple[AguiResume, ...], Field(max_length=100)] | None = None
    tools: NoTools = None


class AgentQuery(RequestModel):
    """Whose run it is; without one, the thread's agent, or the default one."""

    agent: Name | None = None


async def run(call: ApiCall[RunAgentInput, AgentQuery]) -> web.StreamResponse:
    """Start a run, or go on with one that was interrupted, and tell it while it goes."""
    reject_idempotency_key(call)
    if call.body.resume:
        turn, given = await _resume(call, call.body.resume)
    else:
        turn, given = await _start(call)
    telling = AguiEncoder(call.body.threadId, call.body.runId)

    async def tell(sent: SseWriter) -> None:
        await sent.send(telling.run_started(turn))
        async with open_events(call, given) as heard:
            await _write_events(call, sent, telling, heard)

    return await stream_sse(call.request, tell, telling.run_aborted)


async def _start(call: ApiCall[RunAgentInput, AgentQuery]) -> tuple[str, AsyncGenerator[TurnEvent, None]]:
    talk = [message for message in call.body.messages if message.role in TEXT_ROLES]
    spoken = [InputMessage(role=TEXT_ROLES[message.role], content=_text(message)) for message in talk]
    now = talk[len(talk) - len(last_user_messages(spoken)) :]
    files = [file for message in now for file in _files(message)]
    text, _ = last_user_input(spoken, standalone=False, pointer="/messages", has_files=bool(files))
    asked = await ask(
        call,
        agent=call.query.agent,
        conversation=call.body.threadId,
        text=text,
        files=files,
        pointer="/messages",
        stream=True,
    )
    return asked.turn, turn_events(call, asked)


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
        raise invalid([Fault(pointer="/messages", detail="a url is a link of ours to a file kept here")])
    return AttachmentCreate(name=name, url=source.value)


async def _resume(
    call: ApiCall[RunAgentInput, AgentQuery], resumes: Sequence[AguiResume]
) -> tuple[str, AsyncGenerator[TurnEvent, None]]:
    """Decide as the interrupts were answered, and go on hearing what comes after they were asked for.

    Where somebody else decided first, that stands.
    """
    asked = [await _require_approval(call, answer.interruptId) for answer in resumes]
    if len({approval.turn for approval in asked}) != 1:
        raise invalid([Fault(pointer="/resume", detail="the interrupts are not of one run")])
    for answer, approval in zip(resumes, asked, strict=True):
        comment = answer.payload.comment if isinstance(answer.payload, ApprovalPayload) else ""
        try:
            await call.services.approvals.decide(
                call.account, approval.id, approved=answer.approved, by=call.principal.key, comment=comment
            )
        except (AlreadyDecided, ApprovalNotFound):
            continue
    turn = asked[0].turn
    given = replay_turn(
        call.services.stream, asked[0].conversation, TurnEventReader(turn=turn), expired=False
    )
    return turn, _after_approvals(given, {approval.id for approval in asked})


async def _require_approval(call: ApiCall[RunAgentInput, AgentQuery], approval_id: str) -> Approval:
    async with call.context.database.read() as connection:
        found = await approval_store.get(connection, call.account, approval_id)
    if found is None:
        raise not_found("there is no such interrupt in this account")
    return found


async def _after_approvals(
    events: AsyncGenerator[TurnEvent, None], approvals: Collection[str]
) -> AsyncGenerator[TurnEvent, None]:
    """Yield what is heard after these were asked for, and the end in any case."""
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
    """Return what the turn of an approval waits for; nothing when that has been decided."""
    async with call.context.database.read() as connection:
        found = await approval_store.get(connection, call.account, approval)
        every = await approval_store.list_for_turn(connection, found.turn) if found else []
    return [one for one in every if one.state == "pending"]


class AguiEncoder:
    """One run as AG-UI's events."""

    def __init__(self, thread: str, run_id: str) -> None:
        self._ids = {"threadId": thread, "runId": run_id}
        self._open_message: str | None = None

    def run_started(self, turn: str) -> dict[str, Any]:
        """Return the event that opens the run."""
        about = {"dovecote": {"turnId": turn}}
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION, "metadata": about}

    def encode(self, event: TurnEvent) -> Iterator[dict[str, Any]]:
        """Yield the events that tell what is heard."""
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
        said, self._open_message = self._open_message, None
        if said is not None:
            yield {"type": "TEXT_MESSAGE_END", "messageId": said}

    def _tool_call(self, event: ToolCalled) -> Iterator[dict[str, Any]]:
        yield from self._end_message()
        about = {"toolCallId": event.call}
        yield {"type": "TOOL_CALL_START", **about, "toolCallName": event.name}
        yield {"type": "TOOL_CALL_ARGS", **about, "delta": json.dumps(dict(event.args), ensure_ascii=False)}
        yield {"type": "TOOL_CALL_END", **about}

    def run_interrupted(self, approvals: Sequence[Approval]) -> Iterator[dict[str, Any]]:
        """Yield the events that end the run until these are decided."""
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
        """Yield the events that end the run as its turn has ended."""
        yield from self._end_message()
        if turn.state is TurnState.FAILED:
            yield self.run_error(turn.error or "the turn failed", "failed")
        elif turn.state is TurnState.CANCELLED:
            yield self._run_finished(outcome={"type": "cancelled"})
        else:
            yield self._run_finished(result=turn.output, outcome={"type": "success"}, usage=_usage(turn))

    def run_aborted(self, problem: HttpProblem) -> dict[str, Any]:
        """Return the event that ends a run which cannot be told any further."""
        return self.run_error(problem.detail, str(problem.status))

    def run_error(self, message: str, code: str) -> dict[str, Any]:
        """Return the event that ends a run which failed."""
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
        summary="run an agent as AG-UI's user interfaces do",
        request_model=RunAgentInput,
        query_model=AgentQuery,
        media_type="text/event-stream",
        error_responses={409: "the thread belongs to another agent"},
        body_bytes=attachments.MAX_BODY_BYTES,
        tag="agui",
    ),
)
"""What the table takes over."""
