"""`/v1/chat/completions` and `/v1/models`: a model is an agent, a completion is a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import web

from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.turns.turns import Turn
from gateway.web.compat.ask import (
    CUT,
    Asked,
    Sent,
    TokensUsed,
    ask,
    ended,
    heard_out,
    hearing,
    listening,
    streaming,
    tokens,
)
from gateway.web.compat.openai_requests import NewCompletion, said
from gateway.web.http.problems import Problem, not_found, openai_error
from gateway.web.http.route import Call, Nothing, Shown
from gateway.web.stream.turn_events import BETWEEN, Ended, Heard, More, Waits

OWNER = "dovecote"


class ModelShown(Shown):
    """An agent, as a client that asks for models sees it."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = OWNER


class Models(Shown):
    """The account's agents."""

    object: str = "list"
    data: list[ModelShown]


class Answer(Shown):
    """What the agent said in its turn."""

    role: str = "assistant"
    content: str
    refusal: str | None = None


class Choice(Shown):
    """The one choice there is."""

    index: int = 0
    message: Answer
    finish_reason: str = "stop"
    logprobs: None = None


class Completion(Shown):
    """A completed turn; its id is the turn's, and `conversation` is where it was asked for."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    conversation: str
    choices: list[Choice]
    usage: TokensUsed


async def list_models(call: Call[Nothing, Nothing]) -> Models:
    """List the agents by name."""
    async with call.surface.database.read() as connection:
        found = await records.list_of(connection, call.account, "agent")
    return Models(data=[_model(record) for record in found])


async def show_model(call: Call[Nothing, Nothing]) -> ModelShown:
    """Show an agent."""
    async with call.surface.database.read() as connection:
        record = await records.find(connection, call.account, "agent", call.path["id"])
    if record is None:
        raise not_found("there is no such agent in this account")
    return _model(record)


def _model(record: Record) -> ModelShown:
    return ModelShown(id=record.name, created=int(record.created_at.timestamp()))


async def complete(call: Call[NewCompletion, Nothing]) -> Completion | web.StreamResponse:
    """Ask an agent, and answer with what it said or while it says it."""
    body = call.body
    text, pictures = said(body.messages, alone=body.conversation is None, at="/messages")
    asked = await ask(
        call,
        agent=body.model,
        conversation=body.conversation,
        text=text,
        pictures=pictures,
        at="/messages",
        stream=bool(body.stream),
    )
    if not body.stream:
        return await _whole(call, asked)
    return await _streamed(call, asked, usage=bool(body.stream_options and body.stream_options.include_usage))


async def _whole(call: Call[NewCompletion, Nothing], asked: Asked) -> Completion:
    texts: list[str] = []
    words = Words()

    def take(one: Heard) -> None:
        if isinstance(one, More):
            texts.extend(words.of(one))

    end = await heard_out(call, asked, take)
    turn = await ended(call, asked, end.turn)
    return Completion(
        id=asked.turn,
        created=asked.created,
        model=asked.agent,
        conversation=asked.conversation,
        choices=[Choice(message=Answer(content="".join(texts)))],
        usage=tokens(turn),
    )


class Words:
    """The messages of one turn as one text."""

    def __init__(self) -> None:
        self._message: str | None = None

    def of(self, more: More) -> Iterator[str]:
        """Yield what this adds to the text."""
        if self._message not in {None, more.message}:
            yield BETWEEN
        self._message = more.message
        yield more.text


async def _streamed(call: Call[NewCompletion, Nothing], asked: Asked, *, usage: bool) -> web.StreamResponse:
    async def tell(sent: Sent) -> None:
        chunks = _Chunks(sent, asked)
        await chunks.tell({"role": "assistant", "content": ""})
        async with listening(call, hearing(call, asked)) as heard:
            end = await chunks.follow(heard)
        if end is None:
            raise asked.problem(503, CUT)
        turn = await ended(call, asked, end.turn)
        await chunks.finish(turn if usage else None)
        await sent.done()

    return await streaming(call.request, tell, broken_off)


def broken_off(problem: Problem) -> dict[str, Any]:
    """Return the event that ends a stream with what went wrong."""
    return {"error": openai_error(problem)}


class _Chunks:
    """One completion while it is said."""

    def __init__(self, sent: Sent, asked: Asked) -> None:
        self._sent = sent
        self._words = Words()
        self._envelope: dict[str, Any] = {
            "id": asked.turn,
            "object": "chat.completion.chunk",
            "created": asked.created,
            "model": asked.agent,
            "conversation": asked.conversation,
        }

    async def follow(self, heard: AsyncIterator[Heard | None]) -> Ended | None:
        """Tell what is heard, to the end; returns it, or None when listening was cut."""
        async for one in heard:
            if isinstance(one, Ended):
                return one
            if one is None:
                await self._sent.pulse()
            for text in self._texts(one):
                await self.tell({"content": text})
        return None

    def _texts(self, one: Heard | None) -> Iterator[str]:
        if isinstance(one, More):
            yield from self._words.of(one)
        elif isinstance(one, Waits):
            wait = f"[waits for a person: approval {one.approval} of `{one.command[:200]}`]"
            yield from self._words.of(More(message=one.approval, text=wait, seq=one.seq))

    async def tell(self, delta: dict[str, Any], finish: str | None = None) -> None:
        """Send one piece."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        await self._sent.tell(self._envelope | {"choices": [choice]})

    async def finish(self, turn: Turn | None) -> None:
        """Send the end, and what `turn` used if that is wanted."""
        await self.tell({}, "stop")
        if turn is not None:
            await self._sent.tell(self._envelope | {"choices": [], "usage": tokens(turn).model_dump()})
