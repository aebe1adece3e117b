"""`/v1/responses`: a response is a turn, its id the turn's, its stream the conversation's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, StrictBool

from gateway.store.accounts import records
from gateway.store.conversations import messages
from gateway.store.conversations.messages import ChatMessageRow
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns as store
from gateway.store.turns.turns import Turn
from gateway.web.api import turns
from gateway.web.compat.ask import (
    STREAM_INTERRUPTED,
    SseWriter,
    SubmittedTurn,
    ask,
    collect_answer,
    open_events,
    replay_events,
    stream_sse,
    turn_events,
)
from gateway.web.compat.openai_chat import render_error
from gateway.web.compat.openai_requests import LenientRequest, ResponseCreate
from gateway.web.compat.request_identity import mark_answered
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, NoContent, ResponseModel
from gateway.web.stream.turn_events import (
    MessageDone,
    TextDelta,
    TurnEnded,
    TurnEvent,
    with_files,
)

NUMBERS_PER_EVENT = 8
"""Sequence numbers of a response per stored event: they begin at its seq times eight."""

_STATUS = {
    TurnState.QUEUED: "queued",
    TurnState.RUNNING: "in_progress",
    TurnState.WAITING: "in_progress",
    TurnState.COMPLETED: "completed",
    TurnState.FAILED: "failed",
    TurnState.CANCELLED: "cancelled",
}


_END_EVENTS = {
    "completed": "response.completed",
    "failed": "response.failed",
    "cancelled": "response.incomplete",
}
"""The event that ends a stream, by the response's status; OpenAI has none of its own for a cancelled one."""


class ResponseQuery(LenientRequest):
    """Whether to stream the response, and after which event."""

    stream: bool = False
    starting_after: Annotated[int, Field(ge=0, le=2**53)] = 0


class ResponseUsage(ResponseModel):
    """The usage of a turn in the format of responses."""

    input_tokens: int = 0
    input_tokens_details: dict[str, int] = Field(default_factory=lambda: {"cached_tokens": 0})
    output_tokens: int = 0
    output_tokens_details: dict[str, int] = Field(default_factory=lambda: {"reasoning_tokens": 0})
    total_tokens: int = 0


class ResponseObject(ResponseModel):
    """A turn as a response; `conversation` is its conversation's id."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    background: StrictBool = False
    model: str
    conversation: dict[str, str]
    previous_response_id: str | None = None
    output: list[dict[str, Any]]
    error: dict[str, str] | None = None
    incomplete_details: None = None
    instructions: None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    parallel_tool_calls: bool = True
    tool_choice: str = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
    usage: ResponseUsage | None = None


async def create_response(call: ApiCall[ResponseCreate, NoContent]) -> ResponseObject | web.StreamResponse:
    """Start a turn; return its answer, a stream of it, or immediately when it runs in the background."""
    body = call.body
    text, pictures = body.user_input()
    asked = await ask(
        call,
        agent=body.model,
        conversation=await _conversation(call),
        text=text,
        files=pictures,
        pointer="/input",
    )
    if body.stream:
        return await _stream(call, asked, turn_events(call, asked), after=0)
    if not body.background:
        await collect_answer(call, asked, lambda _heard: None)
    shown = await _to_response(call, asked.turn)
    await mark_answered(call, asked.identity, asked.turn)
    return shown.model_copy(update={"background": bool(body.background)})


async def _conversation(call: ApiCall[ResponseCreate, NoContent]) -> str | None:
    previous = call.body.previous_response_id
    return (
        call.body.conversation_name
        if previous is None
        else (await _require_turn(call, previous)).conversation
    )


async def get_response(call: ApiCall[NoContent, ResponseQuery]) -> ResponseObject | web.StreamResponse:
    """Return a response, or stream it from a position."""
    turn = await _require_turn(call, call.path["id"])
    if not call.query.stream:
        return await _to_response(call, turn.id)
    given = replay_events(call, turn)
    asked = SubmittedTurn(turn=turn.id, conversation=turn.conversation, agent=turn.agent, after=0, created=0)
    return await _stream(call, asked, given, after=call.query.starting_after)


async def cancel_response(call: ApiCall[NoContent, NoContent]) -> ResponseObject:
    """Cancel a response's turn; does nothing to an ended one."""
    await turns.cancel_turn(call)
    return await _to_response(call, call.path["id"])


async def _require_turn(call: ApiCall[Any, Any], turn: str) -> Turn:
    async with call.context.database.read() as connection:
        found = await store.get(connection, call.account, turn)
    if found is None:
        raise not_found("there is no such response in this account")
    return found


async def _to_response(call: ApiCall[Any, Any], turn_id: str) -> ResponseObject:
    turn = await _require_turn(call, turn_id)
    answers = await _require_turn(call, turn.merged_into) if turn.merged_into else turn
    async with call.context.database.read() as connection:
        agent = await records.get(connection, call.account, "agent", turn.agent)
        spoken = await messages.list_replies(connection, answers.id)
    error = answers.error if answers.state is TurnState.FAILED else None
    return ResponseObject(
        id=turn.id,
        created_at=int(turn.created_at.timestamp()),
        status=_STATUS[answers.state],
        model=agent.name if agent else turn.agent,
        conversation={"id": turn.conversation},
        output=_items(spoken),
        error={"code": "server_error", "message": error} if error else None,
        usage=_tokens(answers),
    )


def _tokens(turn: Turn) -> ResponseUsage | None:
    if turn.usage is None:
        return None
    read, written = int(turn.usage.get("input_tokens", 0)), int(turn.usage.get("output_tokens", 0))
    return ResponseUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _items(messages: Sequence[ChatMessageRow]) -> list[dict[str, Any]]:
    said = [(one.id, with_files(one.text, one.attachments)) for one in messages]
    return [_item(message, text, "completed") for message, text in said]


def _item(message: str, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"type": "message", "id": message, "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def _stream(
    call: ApiCall[Any, Any], submitted: SubmittedTurn, events: AsyncGenerator[TurnEvent, None], *, after: int
) -> web.StreamResponse:
    started = await _to_response(call, submitted.turn)
    blank: dict[str, Any] = {"output": [], "usage": None, "error": None, "status": "in_progress"}
    encoder = ResponseEncoder(started.model_copy(update=blank).model_dump())

    async def tell(sent: SseWriter) -> None:
        async with open_events(call, events) as heard:
            end = await _write_events(sent, encoder, heard, after=after)
        if end is None:
            raise submitted.problem(503, STREAM_INTERRUPTED)
        shown = await _to_response(call, submitted.turn)
        for shape in encoder.encode_end(end, shown.model_dump()):
            await _send(sent, shape, after=after)
        await mark_answered(call, submitted.identity, submitted.turn)

    return await stream_sse(call.request, tell, render_error)


async def _write_events(
    writer: SseWriter, encoder: ResponseEncoder, events: AsyncIterator[TurnEvent | None], *, after: int
) -> TurnEnded | None:
    async for one in events:
        if isinstance(one, TurnEnded):
            return one
        if one is None:
            await writer.heartbeat()
            continue
        for shape in encoder.encode(one):
            await _send(writer, shape, after=after)
    return None


async def _send(writer: SseWriter, shape: dict[str, Any], *, after: int) -> None:
    if shape["sequence_number"] > after:
        await writer.send(shape, event=shape["type"])


class ResponseEncoder:
    """Encodes one response as stream events; the same turn events give the same events and numbers."""

    def __init__(self, initial: dict[str, Any]) -> None:
        self._initial: dict[str, Any] | None = initial
        self._seq = self._next = 0
        self._item_indexes: dict[str, int] = {}

    def encode(self, event: TurnEvent) -> Iterator[dict[str, Any]]:
        """Yield the events for a turn event."""
        yield from self._start(event.seq)
        if isinstance(event, TextDelta):
            yield from self._text_delta(event)
        elif isinstance(event, MessageDone):
            yield from self._message_done(event)

    def encode_end(self, end: TurnEnded, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of the end."""
        yield from self._start(end.seq)
        yield self._event(end.seq, _END_EVENTS[response["status"]], response=response)

    def _start(self, seq: int) -> Iterator[dict[str, Any]]:
        started, self._initial = self._initial, None
        if started is not None:
            yield self._event(seq, "response.created", response=started)
            yield self._event(seq, "response.in_progress", response=started)

    def _text_delta(self, event: TextDelta) -> Iterator[dict[str, Any]]:
        if event.message not in self._item_indexes:
            self._item_indexes[event.message] = len(self._item_indexes)
            item = _item(event.message, None, "in_progress")
            yield self._item_event(event, "response.output_item.added", item=item)
            yield self._text_event(event, "response.content_part.added", part=_part(""))
        yield self._text_event(event, "response.output_text.delta", delta=event.text, logprobs=[])

    def _message_done(self, event: MessageDone) -> Iterator[dict[str, Any]]:
        if event.message not in self._item_indexes:
            return  # an answer without text, but with files
        yield self._text_event(event, "response.output_text.done", text=event.text, logprobs=[])
        yield self._text_event(event, "response.content_part.done", part=_part(event.text))
        yield self._item_event(
            event, "response.output_item.done", item=_item(event.message, event.text, "completed")
        )

    def _item_event(self, event: TextDelta | MessageDone, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(event.seq, kind, output_index=self._item_indexes[event.message], **fields)

    def _text_event(self, event: TextDelta | MessageDone, kind: str, **fields: Any) -> dict[str, Any]:
        return self._item_event(event, kind, item_id=event.message, content_index=0, **fields)

    def _event(self, seq: int, kind: str, **fields: Any) -> dict[str, Any]:
        if seq != self._seq:
            self._seq, self._next = seq, 0
        number = NUMBERS_PER_EVENT * seq + self._next
        self._next += 1
        return {"type": kind, "sequence_number": number, **fields}
