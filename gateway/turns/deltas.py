"""Deltas: parts of a message while it is generated, coalesced into transient events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self

from delivery.events.event import Event, EventType

INTERVAL = 0.1
"""Seconds between two transient events of one message; the first is sent at once."""

MAX_BUFFERED = 1024
"""Characters in the buffer that are sent without waiting."""

PublishTransient = Callable[[Event], Awaitable[None]]
OnMessageText = Callable[[str, str | None], None]
"""Receive a message's id and full text so far; None: the message is complete. Must not wait."""


class Deltas:
    """Coalesces text and publishes it as transient events; `on_text` gets the full text for drafts."""

    def __init__(
        self,
        conversation: str,
        turn: str,
        attempt: int,
        *,
        publish_transient: PublishTransient,
        on_text: OnMessageText | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conversation = conversation
        self._turn = turn
        self._attempt = attempt
        self._publish_transient = publish_transient
        self._on_text = on_text
        self._clock = clock
        self._timer: asyncio.Task[None] | None = None
        self._start("")

    def _start(self, message: str) -> None:
        self._message = message
        self._full_text: list[str] = []
        self._buffer = ""
        self._part = 0
        self._sent_at = float("-inf")

    async def add(self, message: str, text: str) -> None:
        """Add text to a message."""
        if message != self._message:
            self._start(message)
        self._buffer += text
        self._full_text.append(text)
        if self._clock() - self._sent_at >= INTERVAL or len(self._buffer) >= MAX_BUFFERED:
            await self._send()
        elif self._timer is None:
            self._timer = asyncio.create_task(self._send_regularly())

    async def __aenter__(self) -> Self:
        """Return the deltas; the timer that sends buffered text starts with the first such text."""
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def _send_regularly(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            if self._buffer and self._clock() - self._sent_at >= INTERVAL:
                await self._send()

    async def close(self) -> None:
        """Discard the buffer, because the complete message follows as a stored event."""
        if self._on_text is not None and self._message:
            self._on_text(self._message, None)
        self._start("")

    async def _send(self) -> None:
        data = {
            "message": self._message,
            "part": self._part,
            "text": self._buffer,
            "attempt": self._attempt,
        }
        self._buffer = ""
        self._part += 1
        self._sent_at = self._clock()
        await self._publish_transient(
            Event.now(EventType.MESSAGE_DELTA, self._conversation, data, turn=self._turn)
        )
        if self._on_text is not None:
            self._on_text(self._message, "".join(self._full_text))
