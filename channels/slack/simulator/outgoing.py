"""How the simulated Slack tells the app: Socket Mode with redelivery, or signed posts with retries."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from channels.slack.simulator.world import APP, Raw

ATTEMPTS = 4


@dataclass(slots=True)
class Envelope:
    """Something to be told, until it is acknowledged."""

    kind: str
    payload: Raw
    id: str
    attempts: int = 0
    carrier: web.WebSocketResponse | None = None

    def frame(self) -> str:
        """Return it as Socket Mode frames it."""
        retry = {"retry_attempt": self.attempts, "retry_reason": "timeout" if self.attempts else ""}
        shape = {"envelope_id": self.id, "type": self.kind, "payload": self.payload}
        return json.dumps({**shape, "accepts_response_payload": self.kind != "events_api", **retry})


@dataclass(slots=True)
class Sockets:
    """The Socket Mode connections; what a broken one had not acknowledged goes to the next, in order."""

    waiting: list[Envelope] = field(default_factory=list)
    open: list[tuple[web.WebSocketResponse, web.Request]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    cuts: int = 0
    connected: int = 0
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def tell(self, envelope: Envelope) -> None:
        """Queue an envelope and send it if somebody listens."""
        self.waiting.append(envelope)
        await self.pump()

    async def pump(self) -> None:
        """Send what nobody has."""
        async with self._sending:
            for envelope in list(self.waiting):
                if envelope.carrier is None and self.open:
                    envelope.carrier = self.open[-1][0]
                    with suppress(ConnectionError):
                        await envelope.carrier.send_str(envelope.frame())

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Hold one connection."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connected += 1
        greeting = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": APP}}
        await socket.send_str(json.dumps(greeting))
        self.open.append((socket, request))
        try:
            await self.pump()
            if self.cuts:
                self.cuts -= 1
                hang_up(request)
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.TEXT:
                    self._acknowledge(str(frame.data))
        finally:
            self._lose(socket)
            await self.pump()
        return socket

    async def cut(self, times: int) -> None:
        """Break the connections there are, and so many of the next ones."""
        self.cuts = max(0, times - len(self.open))
        for _, request in list(self.open):
            hang_up(request)

    async def refresh(self, reason: str) -> None:
        """Ask the app to connect anew, and close."""
        for socket, _ in list(self.open):
            await socket.send_str(json.dumps({"type": "disconnect", "reason": reason}))
            await socket.close()

    def _acknowledge(self, text: str) -> None:
        number = json.loads(text).get("envelope_id")
        self.acknowledged.append(number)
        self.waiting = [envelope for envelope in self.waiting if envelope.id != number]

    def _lose(self, socket: web.WebSocketResponse) -> None:
        self.open = [pair for pair in self.open if pair[0] is not socket]
        for envelope in self.waiting:
            if envelope.carrier is socket:
                envelope.carrier = None
                envelope.attempts += 1


def hang_up(request: web.Request) -> None:
    """End a connection without a word."""
    if request.transport is not None:
        request.transport.abort()


def signed(secret: str, body: bytes, content_type: str, *, now: float | None = None) -> dict[str, str]:
    """Return the headers of a post: the v0 signature over `v0:time:body`."""
    stamp = str(int(time.time() if now is None else now))
    base = b":".join([b"v0", stamp.encode(), body])
    key = secret.encode("utf-8", "surrogatepass")
    digest = hmac.new(key, base, hashlib.sha256).hexdigest()
    return {
        "content-type": content_type,
        "x-slack-request-timestamp": stamp,
        "x-slack-signature": f"v0={digest}",
    }


def posted(kind: str, payload: Raw) -> tuple[bytes, str]:
    """Return the body and type of a post: JSON for events, forms for the rest."""
    form = "application/x-www-form-urlencoded"
    if kind == "events_api":
        return json.dumps(payload).encode(), "application/json"
    if kind == "interactive":
        return urlencode({"payload": json.dumps(payload)}).encode(), form
    return urlencode(payload).encode(), form


async def push(url: str, secret: str, kind: str, payload: Raw) -> list[int]:
    """Post until it is taken, three retries at the most and for events only; returns the statuses."""
    body, content_type = posted(kind, payload)
    statuses: list[int] = []
    async with aiohttp.ClientSession() as session:
        for attempt in range(ATTEMPTS if kind == "events_api" else 1):
            retry: dict[str, Any] = {"x-slack-retry-num": str(attempt), "x-slack-retry-reason": "http_error"}
            headers = {**signed(secret, body, content_type), **(retry if attempt else {})}
            async with session.post(url, data=body, headers=headers) as answer:
                statuses.append(answer.status)
            if statuses[-1] == 200:  # noqa: PLR2004 - OK
                break
    return statuses
