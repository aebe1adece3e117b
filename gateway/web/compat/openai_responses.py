"""`/v1/responses`: a response is a turn, its id the turn's, its stream the conversation's events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, StrictBool

from gateway.store.accounts import records
from gateway.store.conversations import messages
from gateway.store.conversations.messages import Kept
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns as store
from gateway.store.turns.turns import Turn
from gateway.web.api import turns
from gateway.web.compat.ask import CUT, Asked, Sent, ask, heard_out, hearing, listening, streaming
from gateway.web.compat.openai_chat import broken_off
from gateway.web.compat.openai_requests import Lenient, NewResponse
from gateway.web.http.problems import not_found
from gateway.web.http.route import Call, Nothing, Shown
from gateway.web.stream.turn_events import Ended, Heard, Listening, More, Whole, hear_again, with_files

EIGHT = 8
"""Sequence numbers there are for each event of ours: its seq times eight, and on from there."""

LONG_AGO = 60.0
"""Seconds after a turn's end, when all that is still kept of it is in the stream."""

_STATUS = {
    TurnState.QUEUED: "queued",
    TurnState.RUNNING: "in_progress",
    TurnState.WAITING: "in_progress",
    TurnState.COMPLETED: "completed",
    TurnState.FAILED: "failed",
    TurnState.CANCELLED: "cancelled",
}


class ResponseQuery(Lenient):
    """Whether to stream it, and after which event."""

    stream: bool = False
    starting_after: Annotated[int, Field(ge=0, le=2**53)] = 0


class TokensUsed(Shown):
    """What the model counted, as responses tell it."""

    input_tokens: int = 0
    input_tokens_details: dict[str, int] = Field(default_factory=lambda: {"cached_tokens": 0})
    output_tokens: int = 0
    output_tokens_details: dict[str, int] = Field(default_factory=lambda: {"reasoning_tokens": 0})
    total_tokens: int = 0


class ResponseShown(Shown):
    """A turn as a response; `conversation` is where it was asked for."""

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
    usage: TokensUsed | None = None


async def respond(call: Call[NewResponse, Nothing]) -> ResponseShown | web.StreamResponse:
    """Ask an agent; answer when it has, while it says it, or at once if it is to go on in the background."""
    body = call.body
    text, pictures = body.said()
    asked = await ask(
        call,
        agent=body.model,
        conversation=await _conversation(call),
        text=text,
        pictures=pictures,
        at="/input",
        stream=bool(body.stream),
    )
    if body.stream:
        return await _streamed(call, asked, hearing(call, asked), after=0)
    if not body.background:
        await heard_out(call, asked, lambda _heard: None)
    shown = await _shown(call, asked.turn)
    return shown.model_copy(update={"background": bool(body.background)})


async def _conversation(call: Call[NewResponse, Nothing]) -> str | None:
    previous = call.body.previous_response_id
    return call.body.named if previous is None else (await _turn(call, previous)).conversation


async def show(call: Call[Nothing, ResponseQuery]) -> ResponseShown | web.StreamResponse:
    """Show a response, or stream it from where a reader stands."""
    turn = await _turn(call, call.path["id"])
    if not call.query.stream:
        return await _shown(call, turn.id)
    over = turn.finished_at is not None and time.time() - turn.finished_at.timestamp() > LONG_AGO
    given = hear_again(call.core.stream, turn.conversation, Listening(turn=turn.id), over=over)
    asked = Asked(turn=turn.id, conversation=turn.conversation, agent=turn.agent, after=0, created=0)
    return await _streamed(call, asked, given, after=call.query.starting_after)


async def cancel(call: Call[Nothing, Nothing]) -> ResponseShown:
    """Cancel a response's turn; what has ended stays as it ended."""
    await turns.cancel_turn(call)
    return await _shown(call, call.path["id"])


async def _turn(call: Call[Any, Any], turn: str) -> Turn:
    async with call.surface.database.read() as connection:
        found = await store.find(connection, call.account, turn)
    if found is None:
        raise not_found("there is no such response in this account")
    return found


async def _shown(call: Call[Any, Any], wanted: str) -> ResponseShown:
    turn = await _turn(call, wanted)
    answers = await _turn(call, turn.merged_into) if turn.merged_into else turn
    async with call.surface.database.read() as connection:
        agent = await records.find(connection, call.account, "agent", turn.agent)
        spoken = await messages.said_by(connection, answers.id)
    error = answers.error or (answers.cancel_why if answers.state is TurnState.CANCELLED else None)
    return ResponseShown(
        id=turn.id,
        created_at=int(turn.created_at.timestamp()),
        status=_STATUS[answers.state],
        model=agent.name if agent else turn.agent,
        conversation={"id": turn.conversation},
        output=_items(spoken),
        error={"code": "server_error", "message": error} if error else None,
        usage=_tokens(answers),
    )


def _tokens(turn: Turn) -> TokensUsed | None:
    if turn.usage is None:
        return None
    read, written = int(turn.usage.get("input_tokens", 0)), int(turn.usage.get("output_tokens", 0))
    return TokensUsed(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _items(spoken: Sequence[Kept]) -> list[dict[str, Any]]:
    said = [(one.id, with_files(one.text, one.attachments)) for one in spoken]
    return [_item(message, text, "completed") for message, text in said]


def _item(message: str, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"type": "message", "id": message, "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def _streamed(
    call: Call[Any, Any], asked: Asked, given: AsyncGenerator[Heard, None], *, after: int
) -> web.StreamResponse:
    begun = await _shown(call, asked.turn)
    blank: dict[str, Any] = {"output": [], "usage": None, "error": None, "status": "in_progress"}
    telling = Telling(begun.model_copy(update=blank).model_dump())

    async def tell(sent: Sent) -> None:
        async with listening(call, given) as heard:
            end = await _follow(sent, telling, heard, after=after)
        if end is None:
            raise asked.problem(503, CUT)
        shown = await _shown(call, asked.turn)
        for shape in telling.ended(end, shown.model_dump()):
            await _tell(sent, shape, after=after)

    return await streaming(call.request, tell, broken_off)


async def _follow(
    sent: Sent, telling: Telling, heard: AsyncIterator[Heard | None], *, after: int
) -> Ended | None:
    async for one in heard:
        if isinstance(one, Ended):
            return one
        if one is None:
            await sent.pulse()
            continue
        for shape in telling.of(one):
            await _tell(sent, shape, after=after)
    return None


async def _tell(sent: Sent, shape: dict[str, Any], *, after: int) -> None:
    if shape["sequence_number"] > after:
        await sent.tell(shape, event=shape["type"])


class Telling:
    """One response as the events of its stream; the same things heard give the same events and numbers."""

    def __init__(self, begun: dict[str, Any]) -> None:
        self._begun: dict[str, Any] | None = begun
        self._seq = self._next = 0
        self._items: dict[str, int] = {}

    def of(self, one: Heard) -> Iterator[dict[str, Any]]:
        """Yield the events that tell what is heard."""
        yield from self._begin(one.seq)
        if isinstance(one, More):
            yield from self._more(one)
        elif isinstance(one, Whole):
            yield from self._whole(one)

    def ended(self, end: Ended, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events that tell of the end."""
        yield from self._begin(end.seq)
        kind = "completed" if response["status"] == "completed" else "failed"
        yield self._numbered(end.seq, f"response.{kind}", response=response)

    def _begin(self, seq: int) -> Iterator[dict[str, Any]]:
        begun, self._begun = self._begun, None
        if begun is not None:
            yield self._numbered(seq, "response.created", response=begun)
            yield self._numbered(seq, "response.in_progress", response=begun)

    def _more(self, one: More) -> Iterator[dict[str, Any]]:
        if one.message not in self._items:
            self._items[one.message] = len(self._items)
            item = _item(one.message, None, "in_progress")
            yield self._of_item(one, "response.output_item.added", item=item)
            yield self._of_text(one, "response.content_part.added", part=_part(""))
        yield self._of_text(one, "response.output_text.delta", delta=one.text, logprobs=[])

    def _whole(self, one: Whole) -> Iterator[dict[str, Any]]:
        if one.message not in self._items:
            return  # it said nothing: it brought files
        yield self._of_text(one, "response.output_text.done", text=one.text, logprobs=[])
        yield self._of_text(one, "response.content_part.done", part=_part(one.text))
        yield self._of_item(one, "response.output_item.done", item=_item(one.message, one.text, "completed"))

    def _of_item(self, one: More | Whole, kind: str, **more: Any) -> dict[str, Any]:
        return self._numbered(one.seq, kind, output_index=self._items[one.message], **more)

    def _of_text(self, one: More | Whole, kind: str, **more: Any) -> dict[str, Any]:
        return self._of_item(one, kind, item_id=one.message, content_index=0, **more)

    def _numbered(self, seq: int, kind: str, **more: Any) -> dict[str, Any]:
        if seq != self._seq:
            self._seq, self._next = seq, 0
        number = EIGHT * seq + self._next
        self._next += 1
        return {"type": kind, "sequence_number": number, **more}
