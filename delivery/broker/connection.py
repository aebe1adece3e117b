"""The connection to NATS: requests, confirmed publishes, and subscriptions that survive broker restarts.

nats-py waits with `asyncio.wait_for`, which on Python 3.11 can swallow a cancellation. So this module never
awaits a nats-py call that could suspend. Replies arrive in inboxes (`delivery.broker.nats_client`). A publish
is passed to nats-py only while its buffer has room, so that it returns at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, SlowConsumerError
from nats.js import JetStreamContext

from delivery.broker import nats_client
from delivery.broker.nats_client import NatsClient, ReplyInbox, ReplyInboxes
from delivery.errors import BrokerFull, BrokerRefused, BrokerUnreachable, DeliveryError

_log = structlog.get_logger(__name__)

PENDING_SIZE = 16 * 1024 * 1024
_MAX_PENDING = PENDING_SIZE // 2
_TRIES = 3
_RETRY_SECONDS = 0.05
STUCK_TIMEOUTS = 3
STUCK_SECONDS = 2.0
"""The server counts as stuck after this many unanswered requests over this many seconds on a live connection.

Many timeouts at the same moment mean that this process was stuck, not the server.
"""

MAX_REPORTED = 50
"""Different errors that the log says between two connections."""

Headers = Mapping[str, str]
OnMessage = Callable[[Msg], Awaitable[None]]
Watcher = Callable[[], None]


UNSTORED_SECONDS = 30.0
"""Seconds that a message that was not stored counts: work that waits for NATS repeats it in seconds."""


class _NotConnected(BrokerUnreachable):
    """There was no connection within the timeout; an immediate retry would fail too."""


class _NotAnswered(BrokerUnreachable):
    """The server is connected and does not answer a request, or no stream takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubAck:
    """The broker's confirmation of a stored message."""

    seq: int
    duplicate: bool


class NatsConnection:
    """A connection to NATS that reconnects without limit; opened by `connect`."""

    def __init__(self, *, on_unresponsive: Watcher | None = None) -> None:
        self._client = NatsClient()
        self._connected = asyncio.Event()
        self._inboxes = ReplyInboxes()
        self._timeouts = 0
        self._first_timeout_at = 0.0
        self._on_unresponsive = on_unresponsive
        self._reconnected: set[Watcher] = set()
        self._on_overflow: dict[Subscription, Watcher] = {}
        self._closed = False
        self._last_error: Exception | None = None
        self._refusal: Exception | None = None
        self._unstored: tuple[float, str] | None = None
        """When and why the last message was not stored; None if it was."""
        self._reported: set[str] = set()
        """What the log says since the last connection: attempts repeat ten times a second."""

    @property
    def state(self) -> str:
        """Return "ok", or why the broker cannot be used: it is away, or does not store messages."""
        if not self.is_connected:
            return f"not connected: {nats_client.CREDENTIALS_REFUSED}" if self._refusal else "not connected"
        since, reason = self._unstored or (-inf, "")
        return reason if monotonic() - since < UNSTORED_SECONDS else "ok"

    @property
    def is_connected(self) -> bool:
        """Whether the broker is connected now."""
        return self._connected.is_set()

    @property
    def is_clustered(self) -> bool:
        """Whether the server that was connected last belongs to a cluster."""
        return self._client.is_clustered

    @property
    def jetstream(self) -> JetStreamContext:
        """The client's own JetStream context, for stores that need no ordering (object stores)."""
        return self._client.jetstream()

    async def wait_connected(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a connection; return False when there is none by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._connected.wait()
        return self.is_connected

    def on_reconnect(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` after every reconnection, until the returned function is called."""
        self._reconnected.add(watcher)
        return lambda: self._reconnected.discard(watcher)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        headers: Headers | None = None,
        *,
        timeout: float = 2.0,
        tries: int = _TRIES,
    ) -> PubAck:
        """Store a message in the stream of its subject.

        Raises AppendConflict, BrokerFull, BrokerRefused, BrokerUnreachable. After BrokerUnreachable the
        message may have been stored; the caller finds out by its compare-and-set or its message id.
        """
        reply = await self._persist(subject, payload, headers, timeout, tries)
        return PubAck(seq=reply["seq"], duplicate=reply.get("duplicate", False))

    async def _persist(
        self, subject: str, payload: bytes, headers: Headers | None, timeout: float, tries: int
    ) -> dict[str, Any]:
        for left in range(tries - 1, -1, -1):
            try:
                response = _decode(await self._exchange(subject, payload, headers, timeout))
            except BrokerUnreachable as error:
                if isinstance(error, _NotAnswered) and not left:
                    raise self._record_unstored(nats_client.not_stored(error)) from error
                if not left or isinstance(error, _NotConnected):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            code = response.get("error", {}).get("err_code")
            if code is None:
                self._unstored = None
                return response
            if code not in nats_client.TRANSIENT_CODES or not left:
                refused = nats_client.error_for(subject, response["error"])
                raise self._record_unstored(refused) if isinstance(refused, BrokerFull) else refused
            await asyncio.sleep(_RETRY_SECONDS)
        raise BrokerUnreachable(f"no answer to {subject}")

    def _record_unstored(self, error: DeliveryError) -> DeliveryError:
        self._unstored = monotonic(), str(error)
        return error

    async def api_request(
        self, api: str, request: Mapping[str, Any] | None = None, *, timeout: float = 5.0
    ) -> dict[str, Any]:
        """Send a JetStream API request; the response may hold `error`. Raises BrokerUnreachable."""
        body = json.dumps(request or {}).encode()
        for left in range(_TRIES - 1, -1, -1):
            try:
                return _decode(await self._exchange(f"$JS.API.{api}", body, None, timeout))
            except BrokerUnreachable as error:
                if not left or isinstance(error, _NotConnected):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
        raise BrokerUnreachable(api)

    async def direct_get(self, stream: str, request: Mapping[str, Any], *, timeout: float = 5.0) -> list[Msg]:
        """Read stored messages by one direct get; the list may be empty.

        Raises BrokerRefused, BrokerUnreachable.
        """
        for left in range(_TRIES - 1, -1, -1):
            try:
                return await self._direct_get_once(stream, json.dumps(request).encode(), timeout)
            except BrokerUnreachable as error:
                if not left or isinstance(error, _NotConnected):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
        raise BrokerUnreachable(stream)

    async def _direct_get_once(self, stream: str, body: bytes, timeout: float) -> list[Msg]:
        messages: list[Msg] = []
        inbox = self._inboxes.open()
        try:
            await self._send(f"$JS.API.DIRECT.GET.{stream}", body, None, inbox.subject, timeout)
            while True:
                message = await self._next(inbox, timeout)
                status = (message.headers or {}).get("Status")
                if status is None:
                    messages.append(message)
                elif status in {"204", "404"}:
                    return messages
                elif status == "503":
                    raise BrokerUnreachable(f"no server answers for the stream {stream}")
                else:
                    raise BrokerRefused(f"a direct get on the stream {stream} returned status {status}")
        finally:
            self._inboxes.close(inbox)

    async def publish_nowait(
        self, subject: str, payload: bytes = b"", headers: Headers | None = None
    ) -> bool:
        """Send a message without confirmation; return False when it could not be sent."""
        if not self._can_send():
            return False
        try:
            await self._client.publish(subject, payload, headers=dict(headers) if headers else None)
        except NatsError:
            return False
        return True

    async def request_to(self, subject: str, payload: bytes, reply: str) -> bool:
        """Send a message with `reply` as the subject of its responses; return False when it was not sent."""
        if not self._can_send():
            return False
        try:
            await self._client.publish(subject, payload, reply=reply)
        except NatsError:
            return False
        return True

    def new_inbox(self) -> str:
        """Return a subject that no other client uses."""
        return self._client.new_inbox()

    @asynccontextmanager
    async def subscribe(
        self, subject: str, callback: OnMessage, *, on_overflow: Watcher = lambda: None
    ) -> AsyncIterator[None]:
        """Receive messages by `callback`; call `on_overflow` when the client has dropped some of them."""
        try:
            subscription = await self._client.subscribe(subject, cb=callback)
        except NatsError as error:
            raise BrokerUnreachable(f"cannot subscribe to {subject}: {error}") from error
        self._on_overflow[subscription] = on_overflow
        try:
            yield
        finally:
            self._on_overflow.pop(subscription, None)
            with suppress(NatsError):
                await subscription.unsubscribe()

    def _can_send(self) -> bool:
        return self.is_connected and not self._closed and self._client.pending_data_size < _MAX_PENDING

    async def _exchange(self, subject: str, payload: bytes, headers: Headers | None, timeout: float) -> Msg:
        inbox = self._inboxes.open()
        try:
            await self._send(subject, payload, headers, inbox.subject, timeout)
            message = await self._next(inbox, timeout)
        finally:
            self._inboxes.close(inbox)
        if (message.headers or {}).get("Status") == "503":
            raise _NotAnswered("no stream accepts the message")
        return message

    async def _send(
        self, subject: str, payload: bytes, headers: Headers | None, reply: str, timeout: float
    ) -> None:
        if self._closed:
            raise BrokerUnreachable("the connection to NATS is closed")
        if not (self.is_connected or await self.wait_connected(timeout)):
            raise _NotConnected("not connected to NATS")
        if self._client.pending_data_size >= _MAX_PENDING:
            raise BrokerUnreachable("the connection to NATS is congested")
        try:
            await self._client.publish(
                subject, payload, reply=reply, headers=dict(headers) if headers else None
            )
        except MaxPayloadError as error:
            raise BrokerRefused(
                f"a message of {len(payload)} bytes on {subject} exceeds the broker's max_payload"
            ) from error
        except NatsError as error:
            raise BrokerUnreachable(f"cannot send to NATS: {error}") from error

    async def _next(self, inbox: ReplyInbox, timeout: float) -> Msg:
        try:
            message = await self._inboxes.next(inbox, timeout)
        except TimeoutError:
            self._record_timeout()
            raise _NotAnswered("NATS does not answer") from None
        if message is None:
            raise BrokerUnreachable("the connection to NATS was lost")
        self._timeouts = 0
        return message

    def _record_timeout(self) -> None:
        now = monotonic()
        if not self._timeouts:
            self._first_timeout_at = now
        self._timeouts += 1
        stuck = self._timeouts >= STUCK_TIMEOUTS and now - self._first_timeout_at >= STUCK_SECONDS
        if stuck and self.is_connected and self._on_unresponsive is not None:
            self._timeouts = 0
            self._on_unresponsive()

    async def _on_reply(self, message: Msg) -> None:
        self._inboxes.deliver(message)

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self._on_overflow.get(error.sub, lambda: None)()
            return
        self._last_error = error
        if nats_client.is_auth_error(error):
            self._refusal = error
        if str(error) not in self._reported and self._inboxes.prefix and len(self._reported) < MAX_REPORTED:
            self._reported.add(str(error))
            _log.warning("nats.error_reported", kind=type(error).__name__, error=str(error))

    async def _on_disconnected(self) -> None:
        if self.is_connected and not self._closed:
            _log.warning("nats.disconnected")
        self._connected.clear()
        self._inboxes.report_loss()

    async def _on_reconnected(self) -> None:
        _log.warning("nats.reconnected")
        self._timeouts, self._refusal = 0, None
        self._reported.clear()
        self._connected.set()
        for watcher in tuple(self._reconnected):
            watcher()

    async def _open(self, url: str, token: str | None, name: str) -> None:
        await self._client.connect(
            [one.strip() for one in url.split(",")],  # a cluster is named by several of its servers
            token=token,
            name=name,
            connect_timeout=nats_client.CONNECT_SECONDS,
            reconnect_time_wait=0.1,  # type: ignore[arg-type] # annotated as int, used as seconds
            max_reconnect_attempts=2,  # for the first connection only; unlimited after it
            pending_size=PENDING_SIZE,
            ping_interval=5,
            skip_subject_validation=True,  # ids in subjects are hashed
            max_outstanding_pings=2,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
        )
        self._client.options["max_reconnect_attempts"] = -1
        self._inboxes.prefix = self._client.new_inbox()
        self._client.on_reply = self._inboxes.deliver
        self._client.replies = await self._client.subscribe(f"{self._inboxes.prefix}.*", cb=self._on_reply)
        self._connected.set()

    async def _close(self) -> None:
        self._closed = True
        self._connected.clear()
        closing = asyncio.ensure_future(self._client.close())
        await asyncio.wait({closing}, timeout=2)


@asynccontextmanager
async def connect(
    url: str, *, token: str | None = None, name: str = "dovecote", on_unresponsive: Watcher | None = None
) -> AsyncIterator[NatsConnection]:
    """Open a connection; raises BrokerUnreachable or BrokerRefused when the first attempt fails.

    `on_unresponsive` is called when the server does not answer although the connection is up.
    """
    connection = NatsConnection(on_unresponsive=on_unresponsive)
    opening = asyncio.ensure_future(connection._open(url, token, name))  # noqa: SLF001 - the class's factory
    await asyncio.wait({opening})
    error = opening.exception()
    if error is not None:
        await connection._close()  # noqa: SLF001
        reported = connection._refusal or connection._last_error  # noqa: SLF001
        raise nats_client.connect_error(error, reported) from error
    try:
        yield connection
    finally:
        await connection._close()  # noqa: SLF001


def _decode(message: Msg) -> dict[str, Any]:
    response: dict[str, Any] = json.loads(message.data)
    return response
