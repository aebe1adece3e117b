"""Deltas: the parts of a message while it is being said, coalesced into transient events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self

from delivery.events.event import Event, Kind

EVERY = 0.1
"""Seconds between two transient events of one message, the first one excepted."""

ENOUGH = 1024
"""Characters that are sent without waiting."""

Whisper = Callable[[Event], Awaitable[None]]
Heard = Callable[[str, str | None], None]
"""Take the whole of a message (its id and text) so far; None: the message is complete. Never waits."""


class Deltas:
    """Collects what is said and whispers it; `heard` gets the whole message so far (for chat drafts)."""

    def __init__(
        self,
        conversation: str,
        turn: str,
        attempt: int,
        *,
        whisper: Whisper,
        heard: Heard | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conversation = conversation
        self._turn = turn
        self._attempt = attempt
        self._whisper = whisper
        self._heard = heard
        self._clock = clock
        self._start("")

    def _start(self, message: str) -> None:
        self._message = message
        self._whole: list[str] = []
        self._held = ""
        self._part = 0
        self._sent_at = float("-inf")

    async def add(self, message: str, text: str) -> None:
        """Take some more of a message."""
        if message != self._message:
            self._start(message)
        self._held += text
        self._whole.append(text)
        if self._clock() - self._sent_at >= EVERY or len(self._held) >= ENOUGH:
            await self._send()

    async def __aenter__(self) -> Self:
        """Begin to send what is held back when no more comes for a while."""
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Send no more."""
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            if self._held and self._clock() - self._sent_at >= EVERY:
                await self._send()

    async def close(self) -> None:
        """Forget the rest: the complete message follows as a lasting event."""
        if self._heard is not None and self._message:
            self._heard(self._message, None)
        self._start("")

    async def _send(self) -> None:
        data = {
            "message": self._message,
            "part": self._part,
            "text": self._held,
            "attempt": self._attempt,
        }
        self._held = ""
        self._part += 1
        self._sent_at = self._clock()
        await self._whisper(Event.now(Kind.MESSAGE_DELTA, self._conversation, data, turn=self._turn))
        if self._heard is not None:
            self._heard(self._message, "".join(self._whole))
