"""Deliver events to the app: by Socket Mode with redelivery, or by signed posts with retries.

A posted event without a 2xx response within three seconds is posted again at once, after a minute and after
five, with `x-slack-retry-num`; `x-slack-no-retry: 1` in the response ends that. Slash commands and
interactions are posted once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from channels.slack.simulator.clock import ChangeNotifier, SimulatedClock
from channels.slack.simulator.world import APP, Raw

OnResponse = Callable[[Raw, Raw], None]
"""Receives a payload and the app's response to it."""

RETRY_DELAYS = (0.0, 60.0, 300.0)
TIMEOUT_SECONDS = 3.0
MAX_RESPONSE_BYTES = 100_000


@dataclass(slots=True)
class Envelope:
    """A payload to deliver until it is acknowledged."""

    kind: str
    payload: Raw
    id: str
    attempts: int = 0
    socket: web.WebSocketResponse | None = None

    def frame(self) -> str:
        """Return it as Socket Mode frames it."""
        retry = {"retry_attempt": self.attempts, "retry_reason": "timeout" if self.attempts else ""}
        shape = {"envelope_id": self.id, "type": self.kind, "payload": self.payload}
        return json.dumps({**shape, "accepts_response_payload": self.kind != "events_api", **retry})


@dataclass(slots=True)
class Sockets:
    """The Socket Mode connections; unacknowledged envelopes of a broken one go to the next, in order.

    `silent` is how many of the next connections get no hello, and no envelope.
    """

    waiting: list[Envelope] = field(default_factory=list)
    open: list[tuple[web.WebSocketResponse, web.Request]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    cuts: int = 0
    silent: int = 0
    connected: int = 0
    max_open: int = 0
    retried: int = 0
    changed: ChangeNotifier = field(default_factory=ChangeNotifier)
    on_response: OnResponse = lambda _payload, _answer: None
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, envelope: Envelope) -> None:
        """Queue an envelope and send it if a connection is open."""
        self.waiting.append(envelope)
        await self.send_waiting()

    async def send_waiting(self) -> None:
        """Send the envelopes that no connection has."""
        async with self._sending:
            for envelope in list(self.waiting):
                if envelope.socket is None and self.open:
                    envelope.socket = self.open[-1][0]
                    with suppress(ConnectionError):
                        await envelope.socket.send_str(envelope.frame())

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connected += 1
        if self.silent:
            self.silent -= 1
            async for _frame in socket:
                pass
            return socket
        greeting = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": APP}}
        await socket.send_str(json.dumps(greeting))
        self.open.append((socket, request))
        self.max_open = max(self.max_open, len(self.open))
        self.changed.notify()
        try:
            await self.send_waiting()
            if self.cuts:
                self.cuts -= 1
                hang_up(request)
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.TEXT:
                    self._acknowledge(str(frame.data))
        finally:
            self._remove_connection(socket)
            await self.send_waiting()
        return socket

    async def cut(self, times: int) -> None:
        """Cut the open connections and the next `times` ones."""
        self.cuts = max(0, times - len(self.open))
        for _, request in list(self.open):
            hang_up(request)

    async def warn(self, reason: str = "warning") -> None:
        """Warn the app that the open connections end soon; `refresh` ends them."""
        debug = {"debug_info": {"host": "simulator", "approximate_connection_time": 18060}}
        for socket, _ in list(self.open):
            await socket.send_str(json.dumps({"type": "disconnect", "reason": reason, **debug}))

    async def refresh(self, reason: str = "refresh_requested") -> None:
        """Ask the app to reconnect, and close the connections."""
        ending = list(self.open)
        await self.warn(reason)
        for socket, _ in ending:
            await socket.close()

    def _acknowledge(self, text: str) -> None:
        answer = json.loads(text)
        number = answer.get("envelope_id")
        self.acknowledged.append(number)
        for envelope in self.waiting:
            if envelope.id == number and isinstance(answer.get("payload"), dict):
                self.on_response(envelope.payload, answer["payload"])
        self.waiting = [envelope for envelope in self.waiting if envelope.id != number]
        self.changed.notify()

    def _remove_connection(self, socket: web.WebSocketResponse) -> None:
        self.open = [pair for pair in self.open if pair[0] is not socket]
        self.changed.notify()
        for envelope in self.waiting:
            if envelope.socket is socket:
                envelope.socket = None
                envelope.attempts += 1
                self.retried += 1


def hang_up(request: web.Request) -> None:
    """Close a connection without a response."""
    if request.transport is not None:
        request.transport.abort()


def signature_headers(
    secret: str, body: bytes, content_type: str, *, now: float | None = None
) -> dict[str, str]:
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


def encode_post(kind: str, payload: Raw) -> tuple[bytes, str]:
    """Return the body and content type of a post: JSON for events, forms for the rest."""
    form = "application/x-www-form-urlencoded"
    if kind == "events_api":
        return json.dumps(payload).encode(), "application/json"
    if kind == "interactive":
        return urlencode({"payload": json.dumps(payload)}).encode(), form
    return urlencode(payload).encode(), form


class Poster:
    """Posts to the app's URL; `statuses` holds the responses to each payload, 0 for a time-out."""

    def __init__(self, clock: SimulatedClock, secret: str, on_response: OnResponse) -> None:
        self._clock = clock
        self._secret = secret
        self._on_response = on_response
        self.statuses: list[list[int]] = []
        self.changed = ChangeNotifier()
        self.timeout = TIMEOUT_SECONDS
        self._retrying: set[asyncio.Task[None]] = set()

    async def send(self, url: str, kind: str, payload: Raw) -> None:
        """Post a payload, events twice if needed; later retries run in the background."""
        statuses: list[int] = []
        self.statuses.append(statuses)
        again = await self._post(url, kind, payload, statuses)
        if again and kind == "events_api":
            again = await self._post(url, kind, payload, statuses)
            if again:
                due = self._clock.now() + RETRY_DELAYS[1]
                later = asyncio.create_task(self._retry(url, payload, statuses, due))
                self._retrying.add(later)
                later.add_done_callback(self._retrying.discard)

    async def _retry(self, url: str, payload: Raw, statuses: list[int], due: float) -> None:
        for following in (*RETRY_DELAYS[2:], 0.0):
            await self._clock.wait_until(due)
            due += following
            if not await self._post(url, "events_api", payload, statuses):
                return

    async def _post(self, url: str, kind: str, payload: Raw, statuses: list[int]) -> bool:
        """Post once; return whether it must be retried."""
        again = await self._try(url, kind, payload, statuses)
        self.changed.notify()
        return again

    async def _try(self, url: str, kind: str, payload: Raw, statuses: list[int]) -> bool:
        body, content_type = encode_post(kind, payload)
        headers = signature_headers(self._secret, body, content_type)  # by real time, which the app uses
        if statuses:
            reason = "http_error" if statuses[-1] else "http_timeout"
            headers |= {"x-slack-retry-num": str(len(statuses)), "x-slack-retry-reason": reason}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self.timeout)) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                said = await answer.content.read(MAX_RESPONSE_BYTES)
                statuses.append(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError):
            statuses.append(0)
            return True
        if statuses[-1] // 100 != 2:  # noqa: PLR2004 - any 2xx is success
            return answer.headers.get("x-slack-no-retry") != "1"
        self._on_response(payload, _parse_response(said))
        return False

    async def close(self) -> None:
        """Cancel the outstanding retries."""
        for task in list(self._retrying):
            task.cancel()
        if self._retrying:
            await asyncio.wait(self._retrying)


def _parse_response(body: bytes) -> Raw:
    """Return the content of an app's response: JSON or plain text."""
    try:
        answer = json.loads(body or b"{}")
    except ValueError:
        return {"text": body.decode(errors="replace")}
    return answer if isinstance(answer, dict) else {}
