"""The events of a conversation over the WebSocket, resumed at the last one after every disconnection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp

from dovecote.client.answers import ConversationEvent
from dovecote.client.errors import GatewayAway, RequestRefused
from dovecote.client.requests import FIRST_PAUSE, LONGEST_PAUSE, PASSING, Requests

MAX_FRAME = 16 * 2**20
HEARTBEAT_SECONDS = 20.0
FINAL_CLOSES = frozenset({4400, 4401})
"""Close codes after which another connection would be closed too."""


class ResumableStream:
    """One subscription: remembers the epoch and the last position that the caller got."""

    def __init__(
        self, requests: Requests, conversation: str, *, after: int | None, deltas: bool, ends_live: bool
    ) -> None:
        self._requests = requests
        self._conversation = conversation
        self._after = after
        self._epoch: str | None = None
        self._deltas = deltas
        self._ends_live = ends_live
        self._has_ended = False

    async def events(self) -> AsyncGenerator[ConversationEvent]:
        """Yield events in their order, each once; raises RequestRefused and GatewayAway."""
        now = asyncio.get_running_loop().time
        received, pause = now(), FIRST_PAUSE
        while True:
            problem = "the gateway closed the connection"
            try:
                async with aclosing(self._connection()) as connection:
                    async for event in connection:
                        received, pause = now(), FIRST_PAUSE
                        if event is not None:
                            yield event
                        received = now()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = _explain(error)
            if self._has_ended:
                return
            if now() - received + pause > self._requests.patience:
                raise GatewayAway(f"{self._requests.url}: {problem}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _connection(self) -> AsyncGenerator[ConversationEvent | None]:
        """Yield the events of one connection, and None for what is no event."""
        session = self._requests.session()
        async with session.ws_connect(
            f"{self._requests.url}/ws", heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_FRAME
        ) as socket:
            await socket.send_json(self._subscription())
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                async for event in self._decode(message.data):
                    yield event
                    if self._has_ended:
                        return
            if socket.close_code in FINAL_CLOSES:
                detail = "the key is not accepted" if socket.close_code == max(FINAL_CLOSES) else "bad frame"
                raise RequestRefused(socket.close_code or 0, detail)

    def _subscription(self) -> dict[str, Any]:
        frame: dict[str, Any] = {"type": "subscribe", "conversation": self._conversation, "batch": True}
        if not self._deltas:
            frame["deltas"] = False
        if self._after is not None:
            frame["after"] = self._after
        if self._epoch is not None:
            frame["epoch"] = self._epoch
        return frame

    async def _decode(self, text: str) -> AsyncIterator[ConversationEvent | None]:
        frame = json.loads(text)
        frames = frame["items"] if frame.get("type") == "events" else [frame]
        for one in frames:
            yield self._track(one)

    def _track(self, frame: dict[str, Any]) -> ConversationEvent | None:
        """Remember the position of a frame; returns it as an event unless it is only about the connection."""
        match frame.get("type"):
            case "subscribed":
                self._epoch = frame.get("epoch")
                self._conversation = str(frame.get("conversation") or self._conversation)
                if self._after is None:
                    self._after = int(frame.get("last_seq") or 0)
                return None
            case "error":
                raise _error(frame)
            case "caught_up":
                self._has_ended = self._ends_live
                return None
            case "pong" | "accepted":
                return None
            case "reset":
                self._epoch, self._after = frame.get("epoch"), 0
            case _:
                self._after = max(self._after or 0, int(frame.get("seq") or 0))
        return ConversationEvent.from_fields(frame)


def _explain(error: Exception) -> str:
    """Return why a connection failed; raises RequestRefused if the next one would fail too."""
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status not in PASSING:
        raise RequestRefused(error.status, "the WebSocket was refused: check the URL and the key") from error
    return str(error) or type(error).__name__


def _error(frame: dict[str, Any]) -> Exception:
    detail = str(frame.get("detail"))
    if frame.get("code") == "unavailable":
        return aiohttp.ClientError(detail)
    return RequestRefused(_STATUS.get(str(frame.get("code")), 422), detail)


_STATUS = {"not_found": 404, "forbidden": 403, "invalid": 422, "too_many": 429}
