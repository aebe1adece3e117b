"""What one turn says, made of its events: text that only ever grows, and then its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from delivery.events.event import Event, Kind
from delivery.events.port import Stream
from delivery.events.replay import Events, frames

BETWEEN = "\n\n"
"""What parts two messages of one turn."""

KEEP_ALIVE = 15.0
"""Seconds after which a silent stream shows that it lives."""

_ENDS = frozenset({Kind.TURN_COMPLETED, Kind.TURN_FAILED, Kind.TURN_CANCELLED})
_TOOLS = frozenset({Kind.TOOL_CALLED, Kind.TOOL_COMPLETED})
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Some more of a message; `seq` is where it stands in the conversation's stream."""

    message: str
    text: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A message is complete."""

    message: str
    text: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The agent called a tool; `call` is unique among all turns."""

    call: str
    name: str
    args: Mapping[str, Any]
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a call came to."""

    call: str
    output: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The turn waits for a person's decision."""

    approval: str
    command: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The turn has ended; the database says how. `turn` is the one that answered."""

    turn: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The turn was asked for."""

    seq: int


Heard = Begun | More | Whole | Called | Returned | Waits | Ended


@dataclass(slots=True, kw_only=True)
class Listening:
    """Follows one turn's events. What was handed on is never taken back.

    A delta that does not follow the one before it (one was lost, or another attempt says the message anew)
    is left out: the complete message brings what is missing.
    """

    turn: str
    _told: dict[str, str] = field(default_factory=dict)
    _parts: dict[str, int] = field(default_factory=dict)
    _attempt: int = 0

    def take(self, event: Event, seq: int) -> Iterator[Heard]:
        """Yield what an event says of the turn."""
        if event.turn != self.turn:
            return
        if event.type is Kind.MESSAGE_DELTA:
            yield from self._more(event, seq)
        elif event.type is Kind.MESSAGE_COMPLETED:
            yield from self._whole(event, seq)
        elif event.type in _TOOLS:
            yield self._tool(event, seq)
        elif event.type in _ENDS:
            yield from self._end(event, seq)
        else:
            yield from self._mark(event, seq)

    @staticmethod
    def _mark(event: Event, seq: int) -> Iterator[Heard]:
        if event.type is Kind.MESSAGE_RECEIVED:
            yield Begun(seq=seq)
        elif event.type is Kind.APPROVAL_REQUESTED:
            yield Waits(approval=event.data["approval"], command=str(event.data["command"]), seq=seq)

    def _end(self, event: Event, seq: int) -> Iterator[Heard]:
        into = event.data.get("merged_into")
        if into is None:
            yield Ended(turn=self.turn, seq=seq)
        else:
            self.turn = str(into)

    def _tool(self, event: Event, seq: int) -> Called | Returned:
        told, call = event.data, f"{self.turn}.{event.data['call']}"
        if event.type is Kind.TOOL_CALLED:
            return Called(call=call, name=told["name"], args=told["args"], seq=seq)
        return Returned(call=call, output=str(told["output"]), seq=seq)

    def _more(self, event: Event, seq: int) -> Iterator[Heard]:
        message, part, attempt = event.data["message"], event.data["part"], event.data["attempt"]
        if message not in self._told:
            self._attempt = attempt
        if part != self._parts.get(message, 0) or attempt != self._attempt:
            self._parts[message] = -1
            return
        self._parts[message] = part + 1
        yield from self._tell(message, event.data["text"], seq)

    def _whole(self, event: Event, seq: int) -> Iterator[Heard]:
        message = event.data["message"]
        text = with_files(event.data["text"], event.data.get("files", ()))
        told = self._told.get(message, "")
        if text.startswith(told):
            yield from self._tell(message, text[len(told) :], seq)
        elif not event.data.get("truncated"):
            yield from self._tell(message, BETWEEN + text, seq)
        self._parts[message] = -1
        yield Whole(message=message, text=text, seq=seq)

    def _tell(self, message: str, text: str, seq: int) -> Iterator[Heard]:
        if text:
            self._told[message] = self._told.get(message, "") + text
            yield More(message=message, text=text, seq=seq)


def with_files(text: str, files: Iterable[Mapping[str, Any]]) -> str:
    """Return a message's text with the links to its files below it."""
    links = [f"[{file['name']}]({file['url']})" for file in files if file.get("url")]
    return "\n\n".join(part for part in (text, "\n".join(links)) if part)


async def hear(
    stream: Stream, conversation: str, listening: Listening, *, after: int
) -> AsyncGenerator[Heard, None]:
    """Yield what a turn says, from a position before it to its end; raises Unreachable at the start."""
    async with aclosing(frames(stream, conversation, after=after)) as given:
        async for frame in given:
            for item in frame.items if isinstance(frame, Events) else ():
                for heard in listening.take(item.event, item.seq):
                    yield heard
                    if isinstance(heard, Ended):
                        return


async def hear_again(
    stream: Stream, conversation: str, listening: Listening, *, over: bool
) -> AsyncGenerator[Heard, None]:
    """Yield all that is kept of what a turn said, its deltas too while they last, and go on to its end.

    So it is told in the same pieces as the first time. `over`: it ended so long ago that what is not kept any
    more will not come.
    """
    position = 0
    while batch := await stream.read(conversation, after=position):
        position = batch[-1].seq
        for item in batch:
            for heard in listening.take(item.event, item.seq):
                yield heard
                if isinstance(heard, Ended):
                    return
    if over:
        yield Ended(turn=listening.turn, seq=position + 1)
        return
    async with aclosing(hear(stream, conversation, listening, after=position)) as given:
        async for heard in given:
            yield heard


async def pulsed(
    given: AsyncIterator[Item], cut: asyncio.Future[None], *, every: float = KEEP_ALIVE
) -> AsyncGenerator[Item | None, None]:
    """Yield what is given, and None whenever nothing came for a while; ends with it, or when it is cut."""
    pending = asyncio.ensure_future(anext(given))
    try:
        while not cut.done():
            waited: set[asyncio.Future[Any]] = {pending, cut}
            done, _ = await asyncio.wait(waited, timeout=every, return_when=asyncio.FIRST_COMPLETED)
            if pending not in done:
                if not done:
                    yield None
                continue
            try:
                item = pending.result()
            except StopAsyncIteration:
                return
            yield item
            pending = asyncio.ensure_future(anext(given))
    finally:
        pending.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await pending
