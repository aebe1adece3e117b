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

from gateway.conversations.approvals import AlreadyDecided, NoSuchApproval
from gateway.records.fields import Name
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turns as store
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.compat.ask import CUT, Sent, ask, hearing, listening, refuse_key, streaming
from gateway.web.compat.openai_requests import Lenient, NoTools, Spoken, Text, Where, last_of_user, said
from gateway.web.http import attachments
from gateway.web.http.attachments import Attached
from gateway.web.http.auth import Key
from gateway.web.http.problems import Problem, invalid, not_found
from gateway.web.http.route import Call, Route, Strict
from gateway.web.stream.turn_events import (
    Called,
    Ended,
    Heard,
    Listening,
    More,
    Returned,
    Waits,
    Whole,
    hear_again,
)
from sandbox.config import Problem as Fault

VERSION = "1.0"
ANSWER = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "comment": {"type": "string"}},
    "required": ["approved"],
}
"""What an interrupt is answered with, as a JSON Schema."""


TALK: dict[str, Literal["system", "developer", "user", "assistant"]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}


class Source(Lenient):
    """Where the bytes of a part are: here in base64, or behind a link of ours."""

    type: Literal["data", "url"]
    value: Where
    mimeType: StrictStr = ""


class Part(Lenient):
    """A piece of a message."""

    type: StrictStr
    text: Text = ""
    source: Source | None = None


class Message(Lenient):
    """A message of the thread; those that are no talk (tools, activities, reasoning) are left out."""

    role: StrictStr
    content: Text | tuple[Part, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _talk_alone(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("role") not in TALK:
            return {**given, "content": None}
        return given

    @property
    def parts(self) -> Sequence[Part]:
        """The pieces of it."""
        if isinstance(self.content, str):
            return [Part(type="text", text=self.content)]
        return self.content or ()


class Payload(Lenient):
    """What a person decided."""

    approved: bool = False
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""


class Resume(Lenient):
    """The answer to an interrupt."""

    interruptId: Annotated[StrictStr, Field(min_length=1, max_length=60)]
    status: Literal["resolved", "cancelled"]
    payload: Payload | bool | None = None

    @property
    def approved(self) -> bool:
        """Whether it lets the call be carried out; nothing less than a clear yes does."""
        told = self.payload.approved if isinstance(self.payload, Payload) else self.payload
        return self.status == "resolved" and told is True


class RunInput(Lenient):
    """What a run is started with."""

    threadId: Name
    runId: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    messages: Annotated[tuple[Message, ...], Field(max_length=1000)]
    resume: Annotated[tuple[Resume, ...], Field(max_length=100)] | None = None
    tools: NoTools = None


class AgentQuery(Strict):
    """Whose run it is; without one, the thread's agent, or the default one."""

    agent: Name | None = None


async def run(call: Call[RunInput, AgentQuery]) -> web.StreamResponse:
    """Start a run, or go on with one that was interrupted, and tell it while it goes."""
    refuse_key(call)
    if call.body.resume:
        turn, given = await _resumed(call, call.body.resume)
    else:
        turn, given = await _asked(call)
    telling = Telling(call.body.threadId, call.body.runId)

    async def tell(sent: Sent) -> None:
        await sent.tell(telling.started(turn))
        async with listening(call, given) as heard:
            await _follow(call, sent, telling, heard)

    return await streaming(call.request, tell, telling.broken_off)


async def _asked(call: Call[RunInput, AgentQuery]) -> tuple[str, AsyncGenerator[Heard, None]]:
    talk = [message for message in call.body.messages if message.role in TALK]
    spoken = [Spoken(role=TALK[message.role], content=_words(message)) for message in talk]
    now = talk[len(talk) - len(last_of_user(spoken)) :]
    files = [file for message in now for file in _files(message)]
    text, _ = said(spoken, alone=False, at="/messages", attached=bool(files))
    asked = await ask(
        call,
        agent=call.query.agent,
        conversation=call.body.threadId,
        text=text,
        pictures=files,
        at="/messages",
        stream=True,
    )
    return asked.turn, hearing(call, asked)


def _words(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if part.text)


def _files(message: Message) -> list[Attached]:
    sources = [(part.type, part.source) for part in message.parts if part.source is not None]
    return [_file(place, kind, source) for place, (kind, source) in enumerate(sources, 1)]


def _file(place: int, kind: str, source: Source) -> Attached:
    ending = source.mimeType.rpartition("/")[2].partition("+")[0] or "bin"
    name = f"{kind[:60]}-{place}.{ending[:20]}"
    if source.type == "data":
        return Attached(name=name, type=source.mimeType[:100], content=source.value)
    if len(source.value) > attachments.LONGEST_URL:
        raise invalid([Fault(pointer="/messages", detail="a url is a link of ours to a file kept here")])
    return Attached(name=name, url=source.value)


async def _resumed(
    call: Call[RunInput, AgentQuery], answers: Sequence[Resume]
) -> tuple[str, AsyncGenerator[Heard, None]]:
    """Decide as the interrupts were answered, and go on hearing what comes after they were asked for.

    Where somebody else decided first, that stands.
    """
    asked = [await _approval(call, answer.interruptId) for answer in answers]
    if len({approval.turn for approval in asked}) != 1:
        raise invalid([Fault(pointer="/resume", detail="the interrupts are not of one run")])
    for answer, approval in zip(answers, asked, strict=True):
        comment = answer.payload.comment if isinstance(answer.payload, Payload) else ""
        try:
            await call.core.approvals.decide(
                call.account, approval.id, approved=answer.approved, by=call.principal.key, comment=comment
            )
        except (AlreadyDecided, NoSuchApproval):
            continue
    turn = asked[0].turn
    given = hear_again(call.core.stream, asked[0].conversation, Listening(turn=turn), over=False)
    return turn, _beyond(given, {approval.id for approval in asked})


async def _approval(call: Call[RunInput, AgentQuery], named: str) -> Approval:
    async with call.surface.database.read() as connection:
        found = await approval_store.find(connection, call.account, named)
    if found is None:
        raise not_found("there is no such interrupt in this account")
    return found


async def _beyond(given: AsyncGenerator[Heard, None], asked: Collection[str]) -> AsyncGenerator[Heard, None]:
    """Yield what is heard after these were asked for, and the end in any case."""
    before = set(asked)
    async with aclosing(given) as heard:
        async for one in heard:
            if not before or isinstance(one, Ended):
                yield one
            elif isinstance(one, Waits):
                before.discard(one.approval)


async def _follow(
    call: Call[Any, Any], sent: Sent, telling: Telling, heard: AsyncIterator[Heard | None]
) -> None:
    async for one in heard:
        if one is None:
            await sent.pulse()
        elif isinstance(one, Ended):
            turn = await _turn(call, one.turn)
            return await _tell_all(sent, telling.ended(turn))
        elif isinstance(one, Waits):
            if waiting := await _waiting(call, one.approval):
                return await _tell_all(sent, telling.interrupted(waiting))
        else:
            await _tell_all(sent, telling.of(one))
    raise Problem(503, CUT)


async def _tell_all(sent: Sent, shapes: Iterator[dict[str, Any]]) -> None:
    for shape in shapes:
        await sent.tell(shape)


async def _turn(call: Call[Any, Any], turn: str) -> Turn:
    async with call.surface.database.read() as connection:
        found = await store.find(connection, call.account, turn)
    if found is None:
        raise not_found("the turn was deleted")
    return found


async def _waiting(call: Call[Any, Any], approval: str) -> list[Approval]:
    """Return what the turn of an approval waits for; nothing when that has been decided."""
    async with call.surface.database.read() as connection:
        found = await approval_store.find(connection, call.account, approval)
        every = await approval_store.of_turn(connection, found.turn) if found else []
    return [one for one in every if one.state == "pending"]


class Telling:
    """One run as AG-UI's events."""

    def __init__(self, thread: str, run_id: str) -> None:
        self._ids = {"threadId": thread, "runId": run_id}
        self._open: str | None = None

    def started(self, turn: str) -> dict[str, Any]:
        """Return the event that opens the run."""
        about = {"dovecote": {"turnId": turn}}
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION, "metadata": about}

    def of(self, one: Heard) -> Iterator[dict[str, Any]]:
        """Yield the events that tell what is heard."""
        if isinstance(one, More):
            yield from self._more(one)
        elif isinstance(one, Whole):
            yield from self._close()
        elif isinstance(one, Called):
            yield from self._called(one)
        elif isinstance(one, Returned):
            about = {"messageId": f"{one.call}.result", "toolCallId": one.call}
            yield {"type": "TOOL_CALL_RESULT", **about, "content": one.output, "role": "tool"}

    def _more(self, one: More) -> Iterator[dict[str, Any]]:
        if self._open != one.message:
            yield from self._close()
            self._open = one.message
            yield {"type": "TEXT_MESSAGE_START", "messageId": one.message, "role": "assistant"}
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": one.message, "delta": one.text}

    def _close(self) -> Iterator[dict[str, Any]]:
        said, self._open = self._open, None
        if said is not None:
            yield {"type": "TEXT_MESSAGE_END", "messageId": said}

    def _called(self, one: Called) -> Iterator[dict[str, Any]]:
        yield from self._close()
        about = {"toolCallId": one.call}
        yield {"type": "TOOL_CALL_START", **about, "toolCallName": one.name}
        yield {"type": "TOOL_CALL_ARGS", **about, "delta": json.dumps(dict(one.args), ensure_ascii=False)}
        yield {"type": "TOOL_CALL_END", **about}

    def interrupted(self, waiting: Sequence[Approval]) -> Iterator[dict[str, Any]]:
        """Yield the events that end the run until these are decided."""
        yield from self._close()
        interrupts = [
            {
                "id": one.id,
                "reason": "approval",
                "message": f"May {one.tool} do this? {one.command}",
                "responseSchema": ANSWER,
                "metadata": {"tool": one.tool, "args": dict(one.args)},
            }
            for one in waiting
        ]
        yield self._finished(outcome={"type": "interrupt", "interrupts": interrupts})

    def ended(self, turn: Turn) -> Iterator[dict[str, Any]]:
        """Yield the events that end the run as its turn has ended."""
        yield from self._close()
        if turn.state is TurnState.FAILED:
            yield self.failed(turn.error or "the turn failed", "failed")
        elif turn.state is TurnState.CANCELLED:
            yield self._finished(outcome={"type": "cancelled"})
        else:
            yield self._finished(result=turn.output, outcome={"type": "success"}, usage=_usage(turn))

    def broken_off(self, problem: Problem) -> dict[str, Any]:
        """Return the event that ends a run which cannot be told any further."""
        return self.failed(problem.detail, str(problem.status))

    def failed(self, why: str, code: str) -> dict[str, Any]:
        """Return the event that ends a run which failed."""
        return {"type": "RUN_ERROR", "message": why, "code": code}

    def _finished(self, **more: Any) -> dict[str, Any]:
        return {"type": "RUN_FINISHED", **self._ids, **more}


def _usage(turn: Turn) -> list[dict[str, Any]]:
    if not turn.usage or not turn.usage.get("requests"):
        return []
    read, written = int(turn.usage["input_tokens"]), int(turn.usage["output_tokens"])
    counted = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    return [{"model": str(turn.usage.get("model", "")), **counted}]


ROUTES = (
    Route(
        method="POST",
        path="/agui",
        access=Key("chat"),
        handler=run,
        summary="run an agent as AG-UI's user interfaces do",
        takes=RunInput,
        query=AgentQuery,
        media="text/event-stream",
        also={409: "the thread belongs to another agent"},
        body_bytes=attachments.BODY_BYTES,
        tag="agui",
    ),
)
"""What the table takes over."""
