"""`/v1/responses`: a response is a turn, its id the turn's, its stream the conversation's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, StrictBool

from delivery.errors import DeliveryError
from gateway.agents.client_request import ClientRequest
from gateway.agents.model.compaction import estimate_text_tokens
from gateway.store.accounts import usage
from gateway.store.conversations import messages
from gateway.store.turn_state import FINAL, TurnState
from gateway.store.turns import turns as store
from gateway.store.turns.turns import Turn
from gateway.web.api import turns
from gateway.web.compat import openai_ids
from gateway.web.compat.ask import (
    STREAM_INTERRUPTED,
    SubmittedTurn,
    ask,
    collect_answer,
    open_events,
    replay_events,
    resume,
    turn_events,
)
from gateway.web.compat.client_calls import AnswerEvent, ClientCalls, delete_part, until_client_calls
from gateway.web.compat.openai.chat import (
    CHECK_SECONDS,
    cancelled_when_gone,
    finish_reason,
    render_error,
)
from gateway.web.compat.openai.items import ResponseEncoder, load_part, user_item, with_referenced
from gateway.web.compat.openai_files import uploaded_files
from gateway.web.compat.openai_messages import LenientRequest
from gateway.web.compat.openai_requests import (
    InputTokensCreate,
    ResponseCreate,
    last_user_input,
    read_history,
)
from gateway.web.compat.request_identity import mark_answered
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, NoContent, ResponseModel
from gateway.web.stream.sse_writer import SseWriter, stream_sse
from gateway.web.stream.turn_events import HEARTBEAT_SECONDS, TurnDelayed, TurnEnded

TURN_FAILED = "invalid_prompt"
"""The code of a failed response. It is the one of OpenAI's after which no client repeats the request."""

FAILURE_TYPE = "invalid_request_error"
"""The type of a failed completion's error. OpenAI's responses have none; the AI SDK refuses one without."""

CANCEL_SECONDS = 5.0
"""Seconds to wait for the end of a cancelled turn; a client that asks later sees it then."""

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reasons of an incomplete response, by the finish reason of a completion."""

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_STATUS: Mapping[TurnState, ResponseStatus] = {
    TurnState.QUEUED: "queued",
    TurnState.RUNNING: "in_progress",
    TurnState.WAITING: "in_progress",
    TurnState.COMPLETED: "completed",
    TurnState.FAILED: "failed",
    TurnState.CANCELLED: "cancelled",
}


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
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    background: StrictBool = False
    model: str
    conversation: dict[str, str]
    previous_response_id: str | None = None
    output: list[dict[str, Any]]
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    parallel_tool_calls: bool = True
    text: dict[str, Any] = Field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: str = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
    usage: ResponseUsage | None = None


class ResponseDeleted(ResponseModel):
    """A deleted response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(ResponseModel):
    """A list of items, all on one page."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    has_more: bool = False
    first_id: str | None = None
    last_id: str | None = None


class InputTokens(ResponseModel):
    """An estimate of the tokens of an input."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ItemQuery(LenientRequest):
    """The order of a list of items."""

    order: Literal["asc", "desc"] = "desc"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response's turn; `after` is the end of the id of the call that the client answered before it."""

    turn: Turn
    after: str = ""

    @property
    def id(self) -> str:
        """The response's id."""
        return openai_ids.from_turn(self.turn.id, "resp_", after=self.after or None)


async def create_response(call: ApiCall[ResponseCreate, NoContent]) -> ResponseObject | web.StreamResponse:
    """Start a turn; return its answer, a stream of it, or immediately when it runs in the background."""
    asked, echo = await _submit(call), call.body.client_request().echo_after(())
    if call.body.stream:
        cancels = call.body.cancel_on_disconnect and not call.body.background
        return await _stream(call, asked, turn_events(call, asked), after=0, echo=echo, cancels=cancels)
    if not call.body.background:
        await collect_answer(call, asked, lambda _received: None)
    shown = await _to_response(call, await _response_of(call, asked), echo)
    await mark_answered(call, asked.identity, asked.turn)
    return shown


async def _submit(call: ApiCall[ResponseCreate, NoContent]) -> SubmittedTurn:
    """Queue the request's turn, or continue the one that waits for the results of the client's tools."""
    body, pointer = call.body, "/input"
    async with call.context.database.read() as connection:
        sent = await with_referenced(connection, call.account, body.messages)
    request = body.client_request()
    if continued := await resume(call, sent, agent=body.model, pointer=pointer, request=request):
        return continued
    conversation = await _conversation(call)
    given = last_user_input(sent, pointer=pointer, continues=conversation is None)
    return await ask(
        call,
        agent=body.model,
        conversation=conversation,
        text=given.text,
        files=[*given.files, *await uploaded_files(call, given.uploads)],
        pointer=pointer,
        places=given.places,
        request=request,
        history=read_history(sent),
    )


async def _conversation(call: ApiCall[ResponseCreate, NoContent]) -> str | None:
    previous = call.body.previous_response_id
    if previous is None:
        return call.body.conversation_name
    return (await _require_response(call, previous)).turn.conversation


async def get_response(call: ApiCall[NoContent, ResponseQuery]) -> ResponseObject | web.StreamResponse:
    """Return a response, or stream it from a position."""
    found = await _require_response(call, call.path["id"])
    if not call.query.stream:
        return await _to_response(call, found)
    turn = found.turn
    async with call.context.database.read() as connection:
        part = await load_part(connection, turn.id, found.after)
    answered = [one.id for one in part.answered] if part else []
    asked = SubmittedTurn(
        turn=turn.id,
        conversation=turn.conversation,
        agent=turn.agent,
        after=0,
        created=0,
        answered=answered,
    )
    given = until_client_calls(replay_events(call, turn), answered)
    return await _stream(call, asked, given, after=call.query.starting_after)


async def cancel_response(call: ApiCall[NoContent, NoContent]) -> ResponseObject:
    """Cancel a response's turn, and wait a short time for its end; does nothing to an ended one."""
    found = await _require_response(call, call.path["id"])
    await turns.cancel_turn(replace(call, path={"id": found.turn.id}))
    if found.turn.state not in FINAL:
        await _wait_for_end(call, found.turn)
    return await _to_response(call, await _require_response(call, call.path["id"]))


async def _wait_for_end(call: ApiCall[Any, Any], turn: Turn) -> None:
    with suppress(TimeoutError, DeliveryError):
        async with (
            asyncio.timeout(CANCEL_SECONDS),
            open_events(call, replay_events(call, turn), turn=turn.id) as events,
        ):
            async for one in events:
                if isinstance(one, TurnEnded):
                    return


async def delete_response(call: ApiCall[NoContent, NoContent]) -> ResponseDeleted:
    """Delete a response, and its conversation if it has no name and no other response."""
    found = await _require_response(call, call.path["id"])
    await delete_part(call, found.turn, found.after)
    return ResponseDeleted(id=found.id)


async def count_input_tokens(call: ApiCall[InputTokensCreate, NoContent]) -> InputTokens:
    """Estimate the tokens of an input, without what the agent adds."""
    body = call.body
    said = [body.input] if isinstance(body.input, str) else [message.text for message in body.input]
    tools = [tool.model_dump_json() for tool in body.tools or ()]
    texts = [*said, body.instructions or "", *tools]
    return InputTokens(input_tokens=sum(estimate_text_tokens(text) for text in texts))


async def refuse_compaction(_call: ApiCall[NoContent, NoContent]) -> NoContent:
    """Raise the 404 for the only operation on responses that agents do not need."""
    detail = "is not supported: the gateway shortens long conversations itself; continue with"
    raise not_found(f"/v1/responses/compact {detail} previous_response_id or conversation")


async def list_input_items(call: ApiCall[NoContent, ItemQuery]) -> ItemList:
    """List the messages, or the results of the client's tools, that a response answers."""
    found = await _require_response(call, call.path["id"])
    async with call.context.database.read() as connection:
        part = await load_part(connection, found.turn.id, found.after)
        asked = await messages.list_for_turn(connection, found.turn.id)
    items = part.results if part and found.after else [user_item(one) for one in asked]
    return to_list(items if call.query.order == "asc" else items[::-1])


def to_list(items: list[dict[str, Any]]) -> ItemList:
    """Return items as a list of one page."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return ItemList(data=items, first_id=first, last_id=last)


async def _require_response(call: ApiCall[Any, Any], given: str) -> StoredResponse:
    turn, after = openai_ids.to_turn(given)
    found = await _require_turn(call, turn)
    if after in ClientRequest.parse(found.request).deleted_responses:
        raise _no_response()
    return StoredResponse(turn=found, after=after)


async def _response_of(call: ApiCall[Any, Any], submitted: SubmittedTurn) -> StoredResponse:
    turn, after = await _require_turn(call, submitted.turn), openai_ids.ending(submitted.last_answered)
    return StoredResponse(turn=turn, after=after)


async def _require_turn(call: ApiCall[Any, Any], turn: str) -> Turn:
    async with call.context.database.read() as connection:
        found = await store.get(connection, call.account, turn)
    if found is None:
        raise _no_response()
    return found


def _no_response() -> HttpProblem:
    return not_found("there is no such response in this account")


async def _to_response(
    call: ApiCall[Any, Any], response: StoredResponse, echo: Mapping[str, Any] | None = None
) -> ResponseObject:
    """Return a response as it is now; `echo` replaces what is repeated of the turn's request."""
    turn = response.turn
    answers = await _require_turn(call, turn.merged_into) if turn.merged_into else turn
    async with call.context.database.read() as connection:
        model = await usage.agent_name(connection, call.account, turn.agent)
        part = await load_part(connection, answers.id, response.after)
    if part is None:
        raise _no_response()
    error = answers.error if answers.state is TurnState.FAILED else None
    request = ClientRequest.parse(turn.request)
    continued = {"previous_response_id": part.previous(turn)} if part.answered else {}
    status = "completed" if part.waits(answers) else _STATUS[answers.state]
    cut = _CUT.get(finish_reason(answers)) if status == "completed" and not part.calls else None
    return ResponseObject(
        id=response.id,
        created_at=int(turn.created_at.timestamp()),
        status="incomplete" if cut else status,
        incomplete_details={"reason": cut} if cut else None,
        model=model,
        conversation={"id": openai_ids.from_conversation(turn.conversation)},
        output=part.output(shows_files=request.output_format is None),
        error={"type": FAILURE_TYPE, "code": TURN_FAILED, "message": error} if error else None,
        usage=_usage(part.tokens(answers)),
        **{**(part.echo(request) if echo is None else echo), **continued},
    )


def _usage(tokens: tuple[int, int] | None) -> ResponseUsage | None:
    if tokens is None:
        return None
    read, written = tokens
    return ResponseUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)


async def _stream(
    call: ApiCall[Any, Any],
    submitted: SubmittedTurn,
    events: AsyncGenerator[AnswerEvent, None],
    *,
    after: int,
    echo: Mapping[str, Any] | None = None,
    cancels: bool = False,
) -> web.StreamResponse:
    started = await _to_response(call, await _response_of(call, submitted), echo)
    blank: dict[str, Any] = {"output": [], "usage": None, "error": None, "status": "in_progress"}
    encoder = ResponseEncoder(started.model_copy(update=blank).model_dump())

    async def tell(sent: SseWriter) -> None:
        async with cancelled_when_gone(call, submitted.turn, wanted=cancels):
            await write(sent)

    async def write(sent: SseWriter) -> None:
        interval = CHECK_SECONDS if cancels else HEARTBEAT_SECONDS
        async with open_events(call, events, turn=submitted.turn, interval=interval) as received:
            end = await _write_events(sent, encoder, received, after=after)
        if end is None:
            raise submitted.problem(503, STREAM_INTERRUPTED)
        shown = await _to_response(call, await _response_of(call, submitted), echo)
        for shape in encoder.encode_end(end, shown.model_dump()):
            await _send(sent, shape, after=after)
        await mark_answered(call, submitted.identity, submitted.turn)

    return await stream_sse(call.request, tell, render_error)


async def _write_events(
    writer: SseWriter, encoder: ResponseEncoder, events: AsyncIterator[AnswerEvent | None], *, after: int
) -> TurnEnded | ClientCalls | None:
    async for one in events:
        if isinstance(one, TurnEnded | ClientCalls):
            return one
        if one is None:
            await writer.heartbeat()
            continue
        if isinstance(one, TurnDelayed):
            await writer.comment(one.text)
        for shape in encoder.encode(one):
            await _send(writer, shape, after=after)
    return None


async def _send(writer: SseWriter, shape: dict[str, Any], *, after: int) -> None:
    if shape["sequence_number"] > after:
        await writer.send(shape, event=shape["type"])
