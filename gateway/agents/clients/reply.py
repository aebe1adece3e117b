"""Read a streamed answer: events are decoded per socket read, and their text is joined."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import aiohttp

from gateway.agents.clients.errors import ModelTimedOut, ModelUnreachable
from gateway.agents.clients.messages import ChatMessage
from gateway.agents.clients.sse import EventParser, EventStreamParser, EventTooLarge, WholeDocument

INTERVAL = 0.05
"""Seconds between two pieces of text; the first is sent at once."""

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""Bytes of one answer, as it is sent."""

SILENCE_SECONDS = 600.0
"""Seconds without a byte, after which a connection counts as broken."""

STREAM_TYPES = {"text/event-stream", "application/json", "application/octet-stream"}
"""Types of an answer; the last one is aiohttp's for a response without a type."""

UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)
"""Errors of a decoder that meets what its API does not document."""

DRAIN_SECONDS = 0.05
"""Seconds that the end of a complete answer may take, after which its connection is not used again."""


class ReplyDecoder(Protocol):
    """Turns the events of one answer into text and a response."""

    is_complete: bool
    """Whether the vendor's last event was read."""

    @abstractmethod
    def add(self, data: bytes) -> str:
        """Read an event and return the text that it adds; raises ModelCallError."""

    @abstractmethod
    def response(self) -> ChatMessage:
        """Return the whole response; raises ModelCallError if the answer broke off."""


class TextJoiner:
    """Joins pieces of text: the first one is due at once, later ones INTERVAL after the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pieces: list[str] = []
        self.count = 0
        self.due_at = float("-inf")

    def add(self, text: str) -> None:
        """Add a piece."""
        if text:
            self._pieces.append(text)
            self.count += 1

    @property
    def is_waiting(self) -> bool:
        """Whether there is text that was not taken."""
        return bool(self._pieces)

    @property
    def is_due(self) -> bool:
        """Whether there is text, and its time has come."""
        return bool(self._pieces) and self._clock() >= self.due_at

    def take(self, *, is_end: bool = False) -> str:
        """Return the joined text; half of a surrogate pair waits for its other half, except at the end."""
        text = "".join(self._pieces)
        self._pieces.clear()
        if text and not is_end and "\ud800" <= text[-1] <= "\udbff":
            self._pieces.append(text[-1])
            text = text[:-1]
        self.due_at = self._clock() + INTERVAL
        return text


class Deadline:
    """The end of the time that one answer may take (0 seconds: no limit), or `silence` without a byte."""

    def __init__(self, model: str, seconds: float, *, silence: float = SILENCE_SECONDS) -> None:
        self._model = model
        self._seconds = seconds
        self._silence = silence
        self.at = asyncio.get_running_loop().time() + seconds if seconds > 0 else None

    def next_byte_at(self) -> float:
        """Return until when the server's next byte may come, as a time of the event loop."""
        silent_at = asyncio.get_running_loop().time() + self._silence
        return silent_at if self.at is None else min(self.at, silent_at)

    def error(self) -> ModelTimedOut | ModelUnreachable:
        """Return the error of a wait that ended without a byte."""
        if self.at is not None and asyncio.get_running_loop().time() >= self.at:
            return ModelTimedOut(self._model, self._seconds)
        return ModelUnreachable(self._model, f"nothing was received for {self._silence:g} seconds")

    def allows(self, seconds: float) -> bool:
        """Return whether so many seconds are left."""
        return self.at is None or asyncio.get_running_loop().time() + seconds < self.at


async def read_reply(
    response: aiohttp.ClientResponse, decoder: ReplyDecoder, deadline: Deadline, model: str
) -> AsyncGenerator[str | ChatMessage, None]:
    """Yield joined pieces of text, and then the response; raises ModelCallError.

    A text that arrives as one piece, in one read with the end, is not yielded: the response follows at once.
    """
    stream, joiner = _Blocks(response, deadline, model), TextJoiner(asyncio.get_running_loop().time)
    parser = WholeDocument() if response.content_type == "application/json" else EventStreamParser()
    while not decoder.is_complete:
        block = await stream.read(joiner.due_at if joiner.is_waiting else None)
        if block is not None:
            events = _parse(parser, block, model)
            for data in events:
                joiner.add(_decode(decoder, data, model))
            if not block:
                break
        if joiner.is_due and not _is_whole(joiner, decoder) and (text := joiner.take()):
            yield text
    if joiner.is_waiting and not _is_whole(joiner, decoder):
        yield joiner.take(is_end=True)
    yield _response(decoder, response, model)
    await stream.drain()


def _response(decoder: ReplyDecoder, response: aiohttp.ClientResponse, model: str) -> ChatMessage:
    """Return the whole response; the error of one that is no stream of events names what it is."""
    try:
        return decoder.response()
    except UNREADABLE as error:
        raise ModelUnreachable(model, f"its answer cannot be read ({error!r})") from error
    except ModelUnreachable as error:
        if response.content_type in STREAM_TYPES:
            raise
        detail = f"it answered with {response.content_type}, which is no stream of events: check base_url"
        raise ModelUnreachable(model, detail) from error


def _is_whole(joiner: TextJoiner, decoder: ReplyDecoder) -> bool:
    """Return whether the answer is complete and its text has one piece, which was not taken."""
    return decoder.is_complete and joiner.is_waiting and joiner.count == 1


def _parse(parser: EventParser, block: bytes, model: str) -> list[bytes]:
    """Return the events that a block completes; an empty block is the end of the stream."""
    try:
        return parser.feed(block) if block else parser.close()
    except EventTooLarge as error:
        raise ModelUnreachable(model, str(error)) from error


def _decode(decoder: ReplyDecoder, data: bytes, model: str) -> str:
    """Return the text that an event adds; an event that is not as documented breaks the answer off."""
    try:
        return decoder.add(data)
    except UNREADABLE as error:
        raise ModelUnreachable(model, f"it sent an event that cannot be read ({error!r})") from error


class _Blocks:
    """The body of a response in blocks, one for each read from the socket."""

    def __init__(self, response: aiohttp.ClientResponse, deadline: Deadline, model: str) -> None:
        self._content = response.content
        self._deadline = deadline
        self._model = model
        self._size = 0

    async def read(self, until: float | None) -> bytes | None:
        """Return the next block, empty at the end, or None if there is none at the time `until`."""
        ends_at = self._deadline.next_byte_at()
        ends_at = ends_at if until is None else min(until, ends_at)
        try:
            block = self._content.read_nowait()
            if not block and not self._content.at_eof():
                async with asyncio.timeout_at(ends_at):
                    block = await self._content.readany()
        except TimeoutError:
            if ends_at == until:
                return None
            raise self._deadline.error() from None
        except (aiohttp.ClientError, OSError) as error:
            raise ModelUnreachable(self._model, str(error) or type(error).__name__) from error
        self._size += len(block)
        if self._size > MAX_REPLY_BYTES:
            raise ModelUnreachable(self._model, f"the answer exceeds {MAX_REPLY_BYTES} bytes")
        return block

    async def drain(self) -> None:
        """Read the end of a complete answer, so that its connection can be used again."""
        if self._content.at_eof():
            return
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._content.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return
