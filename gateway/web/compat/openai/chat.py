"""`/v1/chat/completions` and `/v1/models`: a model is an agent, a completion is a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

from aiohttp import web

from gateway.agents.port import CUT_NOTICES
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.turns.turns import Turn
from gateway.web.api import turns
from gateway.web.compat import openai_ids
from gateway.web.compat.ask import (
    STREAM_INTERRUPTED,
    SubmittedTurn,
    ask,
    collect_answer,
    completed_turn,
    existing_turn,
    open_events,
    resume,
    turn_events,
)
from gateway.web.compat.client_calls import AnswerEvent, ClientCalls
from gateway.web.compat.openai.items import load_part, used_tokens
from gateway.web.compat.openai_files import uploaded_files
from gateway.web.compat.openai_requests import ChatCompletionCreate, last_user_input, read_history
from gateway.web.compat.request_identity import mark_answered
from gateway.web.http.problems import HttpProblem, openai_error
from gateway.web.http.route import ApiCall, NoContent, ResponseModel
from gateway.web.stream.sse_writer import ClientGone, SseWriter, stream_sse
from gateway.web.stream.turn_events import (
    HEARTBEAT_SECONDS,
    MESSAGE_SEPARATOR,
    ApprovalNeeded,
    ClientToolCalled,
    TextDelta,
    TurnDelayed,
    TurnEnded,
)

OWNER = "dovecote"
CHECK_SECONDS = 1.0
"""Seconds between the comments of a stream with `cancel_on_disconnect`, which show that a client has gone."""


class ModelResponse(ResponseModel):
    """An agent as an OpenAI model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER


class ModelList(ResponseModel):
    """The account's agents."""

    object: Literal["list"] = "list"
    data: list[ModelResponse]


class CompletionUsage(ResponseModel):
    """The usage of a turn in the format of chat completions."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class ChatCompletionMessage(ResponseModel):
    """The agent's answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatCompletionChoice(ResponseModel):
    """The only choice of a completion."""

    index: int = 0
    message: ChatCompletionMessage
    finish_reason: str = "stop"
    logprobs: None = None


class ChatCompletion(ResponseModel):
    """A turn, or a part of one that ends with calls of the client's tools."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    conversation: str
    choices: list[ChatCompletionChoice]
    usage: CompletionUsage


async def list_models(call: ApiCall[NoContent, NoContent]) -> ModelList:
    """List the agents by name."""
    async with call.context.database.read() as connection:
        found = await records.list_by_kind(connection, call.account, "agent")
    return ModelList(data=[_model(record) for record in found])


async def get_model(call: ApiCall[NoContent, NoContent]) -> ModelResponse:
    """Show an agent."""
    async with call.context.database.read() as connection:
        record = await records.get(connection, call.account, "agent", call.path["id"])
    if record is None:
        detail = "there is no such agent in this account"
        raise HttpProblem(404, detail, members={"code": "model_not_found"})
    return _model(record)


def _model(record: Record) -> ModelResponse:
    return ModelResponse(id=record.name, created=int(record.created_at.timestamp()))


async def complete(call: ApiCall[ChatCompletionCreate, NoContent]) -> ChatCompletion | web.StreamResponse:
    """Start a turn, and return its answer complete or as a stream."""
    body = call.body
    asked = await _submit(call)
    if not body.stream:
        return await _collect(call, asked)
    return await _stream(call, asked)


async def _submit(call: ApiCall[ChatCompletionCreate, NoContent]) -> SubmittedTurn:
    """Queue the request's turn, or continue the one that waits for the results of the client's tools."""
    body, pointer = call.body, "/messages"
    request = body.client_request()
    if continued := await resume(call, body.messages, agent=body.model, pointer=pointer, request=request):
        return continued
    given = last_user_input(body.messages, pointer=pointer, continues=body.conversation_name is None)
    return await ask(
        call,
        agent=body.model,
        conversation=body.conversation_name,
        text=given.text,
        files=[*given.files, *await uploaded_files(call, given.uploads)],
        pointer=pointer,
        places=given.places,
        request=request,
        history=read_history(body.messages),
    )


async def _collect(
    call: ApiCall[ChatCompletionCreate, NoContent], submitted: SubmittedTurn
) -> ChatCompletion:
    texts: list[str] = []
    words = TurnText()

    def take(one: AnswerEvent) -> None:
        if isinstance(one, TextDelta):
            texts.extend(words.add(one))

    end = await collect_answer(call, submitted, take)
    message = ChatCompletionMessage(content="".join(texts))
    if isinstance(end, ClientCalls):
        called = [_tool_call(one) for one in end.calls]
        message = ChatCompletionMessage(content="".join(texts) or None, tool_calls=called)
    finish, usage = await _ending(call, submitted, end)
    await mark_answered(call, submitted.identity, submitted.turn)
    return ChatCompletion(
        id=_completion_id(submitted),
        created=submitted.created,
        model=submitted.agent,
        conversation=submitted.conversation,
        choices=[ChatCompletionChoice(message=message, finish_reason=finish)],
        usage=usage,
    )


async def _ending(
    call: ApiCall[Any, Any], submitted: SubmittedTurn, end: TurnEnded | ClientCalls
) -> tuple[str, CompletionUsage]:
    """Return why a completion ends, and what it used; raises HttpProblem if its turn failed."""
    if isinstance(end, ClientCalls):
        turn, finish = await existing_turn(call, submitted, submitted.turn), "tool_calls"
    else:
        turn = await completed_turn(call, submitted, end.turn)
        finish = finish_reason(turn)
        if not submitted.answered:
            return finish, token_usage(used_tokens(turn.usage))
    async with call.context.database.read() as connection:
        part = await load_part(connection, turn.id, openai_ids.ending(submitted.last_answered))
    return finish, token_usage(part.tokens(turn) if part else None)


def token_usage(tokens: tuple[int, int] | None) -> CompletionUsage:
    """Return the usage with these tokens, which were read and written."""
    read, written = tokens or (0, 0)
    return CompletionUsage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


def _completion_id(submitted: SubmittedTurn) -> str:
    return openai_ids.from_turn(submitted.turn, "chatcmpl-", after=submitted.last_answered)


def finish_reason(turn: Turn) -> str:
    """Return why a completed turn's answer ends: `length` or `content_filter` if that cut it, else `stop`."""
    output = (turn.output or "").rstrip()
    return next((reason for reason, notice in CUT_NOTICES.items() if output.endswith(notice)), "stop")


def _tool_call(called: ClientToolCalled) -> dict[str, Any]:
    """Return a call of a client's tool."""
    kind, field = ("custom", "input") if called.is_custom else ("function", "arguments")
    made = {"name": called.name, field: called.text}
    return {"id": openai_ids.from_approval(called.approval), "type": kind, kind: made}


class TurnText:
    """The messages of one turn as one text."""

    def __init__(self) -> None:
        self._last_message: str | None = None

    def add(self, delta: TextDelta) -> Iterator[str]:
        """Yield the text that an event adds."""
        if self._last_message not in {None, delta.message}:
            yield MESSAGE_SEPARATOR
        self._last_message = delta.message
        yield delta.text


async def _stream(
    call: ApiCall[ChatCompletionCreate, NoContent], submitted: SubmittedTurn
) -> web.StreamResponse:
    body = call.body
    usage = body.stream_options is not None and body.stream_options.include_usage
    has_format = body.client_request().output_format is not None

    async def tell(sent: SseWriter) -> None:
        async with cancelled_when_gone(call, submitted.turn, wanted=body.cancel_on_disconnect):
            await write(sent)

    async def write(sent: SseWriter) -> None:
        chunks = _ChunkWriter(sent, submitted, shows_approvals=not has_format)
        await chunks.send({"role": "assistant", "content": ""})
        interval = CHECK_SECONDS if body.cancel_on_disconnect else HEARTBEAT_SECONDS
        received = turn_events(call, submitted)
        async with open_events(call, received, turn=submitted.turn, interval=interval) as events:
            end = await chunks.write_events(events)
        if end is None:
            raise submitted.problem(503, STREAM_INTERRUPTED)
        if isinstance(end, ClientCalls):
            await chunks.send_calls(end)
        finish, used = await _ending(call, submitted, end)
        await chunks.finish(finish, used if usage else None)
        await sent.send_done()
        await mark_answered(call, submitted.identity, submitted.turn)

    return await stream_sse(call.request, tell, render_error)


@asynccontextmanager
async def cancelled_when_gone(call: ApiCall[Any, Any], turn: str, *, wanted: bool) -> AsyncIterator[None]:
    """Cancel the turn, if `wanted`, when its client goes while the block writes; raises ClientGone.

    Chat clients end the connection when a person presses *Stop*. Without the option the turn goes on, so that
    a client whose connection breaks loses no result.
    """
    try:
        yield
    except ClientGone:
        if wanted:
            await turns.cancel_turn(replace(call, path={"id": turn}))
        raise


def render_error(problem: HttpProblem) -> dict[str, Any]:
    """Return the event that ends a stream with an error."""
    return {"error": openai_error(problem)}


class _ChunkWriter:
    """Streams one completion."""

    def __init__(self, writer: SseWriter, submitted: SubmittedTurn, *, shows_approvals: bool) -> None:
        self._writer = writer
        self._shows_approvals = shows_approvals
        self._text = TurnText()
        self._envelope: dict[str, Any] = {
            "id": _completion_id(submitted),
            "object": "chat.completion.chunk",
            "created": submitted.created,
            "model": submitted.agent,
            "conversation": submitted.conversation,
        }

    async def write_events(self, events: AsyncIterator[AnswerEvent | None]) -> TurnEnded | ClientCalls | None:
        """Send the answer's events; returns its end, or None when reading was cut."""
        async for one in events:
            if isinstance(one, TurnEnded | ClientCalls):
                return one
            if one is None:
                await self._writer.heartbeat()
            if isinstance(one, TurnDelayed):
                await self._writer.comment(one.text)
            for text in self._render(one):
                await self.send({"content": text})
        return None

    def _render(self, event: AnswerEvent | None) -> Iterator[str]:
        if isinstance(event, TextDelta):
            yield from self._text.add(event)
        elif isinstance(event, ApprovalNeeded) and self._shows_approvals:
            wait = f"[waiting for approval {event.approval} of:\n{event.command}]"
            yield from self._text.add(TextDelta(message=event.approval, text=wait, seq=event.seq))

    async def send(self, delta: dict[str, Any], finish: str | None = None) -> None:
        """Send one chunk."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        await self._writer.send(self._envelope | {"choices": [choice]})

    async def send_calls(self, end: ClientCalls) -> None:
        """Send the calls of the client's tools."""
        for index, called in enumerate(end.calls):
            await self.send({"tool_calls": [{"index": index, **_tool_call(called)}]})

    async def finish(self, reason: str, usage: CompletionUsage | None) -> None:
        """Send the end, and the usage if the client requested it."""
        await self.send({}, reason)
        if usage is not None:
            await self._writer.send(self._envelope | {"choices": [], "usage": usage.model_dump()})
