"""One turn read from its events: text that only grows, tool calls, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from delivery.events.event import TURN_ENDS, Event, EventType
from delivery.events.port import EventStream
from delivery.events.replay import Events, frames
from gateway.agents.client_request import CUSTOM_INPUT

MESSAGE_SEPARATOR = "\n\n"
"""The separator of two messages of a turn."""

HEARTBEAT_SECONDS = 15.0
"""Seconds of silence after which a stream sends a heartbeat."""

_JOB_STATES = {
    EventType.JOB_STARTED: "running",
    EventType.JOB_COMPLETED: "completed",
    EventType.JOB_FAILED: "failed",
    EventType.JOB_STOPPED: "stopped",
    EventType.JOB_LOST: "lost",
}
_TOOLS = frozenset({EventType.TOOL_CALLED, EventType.TOOL_COMPLETED})
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of a message's text; `seq` is its position in the conversation's stream."""

    message: str
    text: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDone:
    """A message is complete."""

    message: str
    text: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The agent called a tool; `call` is unique among all turns."""

    call: str
    name: str
    args: Mapping[str, Any]
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned:
    """The result of a tool call."""

    call: str
    output: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalNeeded:
    """The turn waits for a person's decision."""

    approval: str
    command: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientToolCalled:
    """The turn waits for the result of a client's tool; `is_last` of the calls that it waits for.

    The tool can be in a `namespace`. A custom tool gets a text, which is the only one of the `args`.
    """

    approval: str
    name: str
    args: Mapping[str, Any]
    is_last: bool
    seq: int
    namespace: str = ""
    is_custom: bool = False

    @classmethod
    def parse(cls, approval: str, called: Mapping[str, Any], *, seq: int = 0) -> ClientToolCalled:
        """Return the call that an approval, or its event, stores."""
        return cls(
            approval=approval,
            name=called["name"],
            args=called["arguments"],
            is_last=called["index"] + 1 >= called["count"],
            seq=seq,
            namespace=called.get("namespace", ""),
            is_custom=called.get("custom", False),
        )

    @property
    def text(self) -> str:
        """What the client gets: the text for a custom tool, else the arguments as JSON."""
        if self.is_custom:
            return str(self.args.get(CUSTOM_INPUT, ""))
        return json.dumps(dict(self.args), ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged:
    """A background job of the turn has started or ended."""

    job: str
    state: str
    exit_code: int | None
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """The turn has ended; the database has its state. `turn` is the one that answered."""

    turn: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued:
    """The turn was queued."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDelayed:
    """The turn waits: an attempt failed and another follows at `next_at` (RFC 3339), or a step takes long."""

    reason: str
    next_at: str | None
    seq: int

    @property
    def text(self) -> str:
        """The reason and the next attempt, for people."""
        return self.reason if self.next_at is None else f"{self.reason}; next attempt at {self.next_at}"


TurnEvent = (
    TurnQueued
    | TurnDelayed
    | TextDelta
    | MessageDone
    | ToolCalled
    | ToolReturned
    | ApprovalNeeded
    | ClientToolCalled
    | JobChanged
    | TurnEnded
)


@dataclass(slots=True, kw_only=True)
class TurnEventReader:
    """Reads one turn's events; text that was yielded is never withdrawn.

    A delta that does not follow the previous one (one was lost, or a new attempt repeats the message)
    is skipped; the complete message contains the rest. `shows_files`: links to files are below the text.
    """

    turn: str
    shows_files: bool = True
    _text_sent: dict[str, str] = field(default_factory=dict)
    _next_part: dict[str, int] = field(default_factory=dict)
    _attempt: int = 0

    def read(self, event: Event, seq: int) -> Iterator[TurnEvent]:
        """Yield the turn events of a stored event."""
        if event.turn != self.turn:
            return
        if event.type is EventType.MESSAGE_DELTA:
            yield from self._message_delta(event, seq)
        elif event.type is EventType.MESSAGE_COMPLETED:
            yield from self._message_done(event, seq)
        elif event.type in _TOOLS:
            yield self._tool(event, seq)
        elif event.type in TURN_ENDS:
            yield from self._turn_ended(event, seq)
        else:
            yield from self._queued_or_waiting(event, seq)

    @staticmethod
    def _queued_or_waiting(event: Event, seq: int) -> Iterator[TurnEvent]:
        if event.type is EventType.MESSAGE_RECEIVED:
            yield TurnQueued(seq=seq)
        elif event.type is EventType.APPROVAL_REQUESTED:
            question = str(event.data.get("question") or event.data["command"])
            yield ApprovalNeeded(approval=event.data["approval"], command=question, seq=seq)
        elif event.type is EventType.QUESTION_REQUESTED:
            yield _question(event, seq)
        elif event.type is EventType.TURN_RETRYING:
            yield TurnDelayed(reason=str(event.data["error"]), next_at=str(event.data["at"]), seq=seq)
        elif event.type is EventType.TURN_WAITING:
            yield TurnDelayed(reason=f"still {event.data['reason']}", next_at=None, seq=seq)
        elif event.type in _JOB_STATES:
            yield JobChanged(
                job=event.data["resultId"],
                state=_JOB_STATES[event.type],
                exit_code=event.data.get("exit_code"),
                seq=seq,
            )

    def _turn_ended(self, event: Event, seq: int) -> Iterator[TurnEvent]:
        into = event.data.get("merged_into")
        if into is None:
            yield TurnEnded(turn=self.turn, seq=seq)
        else:
            self.turn = str(into)

    def _tool(self, event: Event, seq: int) -> ToolCalled | ToolReturned:
        data, call = event.data, f"{self.turn}.{event.data['call']}"
        if event.type is EventType.TOOL_CALLED:
            return ToolCalled(call=call, name=data["name"], args=data["args"], seq=seq)
        return ToolReturned(call=call, output=str(data["output"]), seq=seq)

    def _message_delta(self, event: Event, seq: int) -> Iterator[TurnEvent]:
        message, part, attempt = event.data["message"], event.data["part"], event.data["attempt"]
        if message not in self._text_sent:
            self._attempt = attempt
        if part != self._next_part.get(message, 0) or attempt != self._attempt:
            self._next_part[message] = -1
            return
        self._next_part[message] = part + 1
        yield from self._text_delta(message, event.data["text"], seq)

    def _message_done(self, event: Event, seq: int) -> Iterator[TurnEvent]:
        message = event.data["message"]
        files = event.data.get("files", ()) if self.shows_files else ()
        text = with_files(event.data["text"], files)
        sent = self._text_sent.get(message, "")
        if text.startswith(sent):
            yield from self._text_delta(message, text[len(sent) :], seq)
        elif not event.data.get("truncated"):
            yield from self._text_delta(message, MESSAGE_SEPARATOR + text, seq)
        self._next_part[message] = -1
        yield MessageDone(message=message, text=text, seq=seq)

    def _text_delta(self, message: str, text: str, seq: int) -> Iterator[TurnEvent]:
        if text:
            self._text_sent[message] = self._text_sent.get(message, "") + text
            yield TextDelta(message=message, text=text, seq=seq)


def _question(event: Event, seq: int) -> ApprovalNeeded | ClientToolCalled:
    approval, called = event.data["approval"], event.data.get("client_tool")
    if called is None:
        return ApprovalNeeded(approval=approval, command=str(event.data["question"]), seq=seq)
    return ClientToolCalled.parse(approval, called, seq=seq)


def with_files(text: str, files: Iterable[Mapping[str, Any]]) -> str:
    """Return a message's text with the links to its files below it."""
    links = [f"[{file['name']}]({file['url']})" for file in files if file.get("url")]
    return "\n\n".join(part for part in (text, "\n".join(links)) if part)


async def follow_turn(
    stream: EventStream, conversation: str, reader: TurnEventReader, *, account: str, after: int
) -> AsyncGenerator[TurnEvent, None]:
    """Yield a turn's events from a position before it to its end; raises BrokerUnreachable at the start."""
    async with aclosing(frames(stream, conversation, account=account, after=after)) as given:
        async for frame in given:
            for item in frame.items if isinstance(frame, Events) else ():
                for events in reader.read(item.event, item.seq):
                    yield events
                    if isinstance(events, TurnEnded):
                        return


async def replay_turn(
    stream: EventStream, conversation: str, reader: TurnEventReader, *, account: str, expired: bool
) -> AsyncGenerator[TurnEvent, None]:
    """Yield a turn's stored events, including stored deltas, and follow it to its end.

    The pieces are the same as the first time. `expired`: it ended so long ago that events that are not
    stored any more will not come.
    """
    position = 0
    while batch := await stream.read(conversation, account=account, after=position):
        position = batch[-1].seq
        for item in batch:
            for events in reader.read(item.event, item.seq):
                yield events
                if isinstance(events, TurnEnded):
                    return
    if expired:
        yield TurnEnded(turn=reader.turn, seq=position + 1)
        return
    following = follow_turn(stream, conversation, reader, account=account, after=position)
    async with aclosing(following) as given:
        async for events in given:
            yield events


async def with_heartbeat(
    source: AsyncIterator[Item], stop: asyncio.Future[None], *, interval: float = HEARTBEAT_SECONDS
) -> AsyncGenerator[Item | None, None]:
    """Yield the events, and None after each period of silence; ends with them or when reading is cut."""
    pending = asyncio.ensure_future(anext(source))
    try:
        while not stop.done():
            waited: set[asyncio.Future[Any]] = {pending, stop}
            done, _ = await asyncio.wait(waited, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            if pending not in done:
                if not done:
                    yield None
                continue
            try:
                item = pending.result()
            except StopAsyncIteration:
                return
            yield item
            pending = asyncio.ensure_future(anext(source))
    finally:
        pending.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await pending
