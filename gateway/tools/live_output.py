"""Live output: what a command prints while it runs, as transient events.

The events are for people who watch. They are bounded in number and size, are not part of the history, and are
superseded by `tool.completed`. A command that ends at once has none.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from delivery.events.event import Event, EventType
from gateway.store.turns.turns import Turn
from gateway.tools.tool import PublishTransient
from sandbox.model import OutputListener

INTERVAL = 0.5
"""Seconds between two publications of a turn; each has one event for each stream at most."""

MAX_TEXT = 8 * 1024
"""Characters of one event. Of output that comes faster the end is shown."""

MAX_CALL_TEXT = 128 * 1024
"""Characters of all events of one call; what follows is in the result alone."""

_OMITTED = "[…]\n"


class CallOutput:
    """The output of one call that was not published yet, by stream."""

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._texts: dict[str, str] = {}
        self._left = MAX_CALL_TEXT

    def add(self, stream: str, content: bytes) -> None:
        """Add a piece of a stream; a character that is split between pieces is completed."""
        if self._left <= 0:
            return
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._texts.get(stream, "") + self._decoders[stream].decode(content)
        self._texts[stream] = text if len(text) <= MAX_TEXT else _OMITTED + text[-MAX_TEXT:]

    def take(self) -> dict[str, str]:
        """Return the texts by stream and forget them."""
        taken = {stream: text.replace("\0", "\ufffd") for stream, text in self._texts.items() if text}
        self._texts = {}
        self._left -= sum(map(len, taken.values()))
        return taken


class LiveOutput:
    """Publishes the output of a turn's calls; without `publish` nothing is collected."""

    def __init__(
        self,
        turn: Turn,
        publish: PublishTransient | None,
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._turn = turn
        self._publish = publish
        self._interval = interval
        self._clock = clock
        self._published_at = float("-inf")

    @asynccontextmanager
    async def of_call(self, call: str) -> AsyncIterator[OutputListener | None]:
        """Yield the listener of a call and publish while the block runs; the rest is in the result."""
        if self._publish is None:
            yield None
            return
        output = CallOutput()
        timer = asyncio.create_task(self._publish_regularly(call, output, self._publish))
        try:
            yield output.add
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    async def _publish_regularly(self, call: str, output: CallOutput, publish: PublishTransient) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if self._clock() - self._published_at < self._interval:
                continue  # another call of the turn had its turn
            for stream, text in output.take().items():
                self._published_at = self._clock()
                data = {"call": call, "stream": stream, "text": text, "attempt": self._turn.attempt}
                await publish(
                    Event.now(EventType.TOOL_DELTA, self._turn.conversation, data, turn=self._turn.id)
                )
