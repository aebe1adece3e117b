"""Receive envelopes by Socket Mode: the SDK's client, with order, a guarded connection and clear ends.

The SDK's client starts a task for each message, connects for ever with a revoked token, and notices a broken
connection only at its next ping. `OrderedSocketModeClient` overrides these three points.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import aiohttp
import structlog
from slack_bolt.adapter.socket_mode.async_internals import send_async_response
from slack_bolt.response import BoltResponse
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest

from channels.errors import ChannelError, Unauthorized, Unreachable
from channels.inbox.calls import parse_json
from channels.inbox.text import clean, mapping
from channels.receiving.backoff import INTERRUPTED, RECEIVING, Backoff
from channels.receiving.held_updates import HeldUpdates
from channels.receiving.status import BACKOFF_SECONDS
from channels.receiving.unread_rooms import UnreadRooms
from channels.slack.api import Api
from channels.slack.receive.catch_up import CatchUp
from channels.slack.session import SDK_LOG

PING_SECONDS = 5.0
MAX_QUEUED = 1000
"""Frames that are read ahead of the one that is being stored."""

CLOSE_SECONDS = 0.5
_OPEN_FRAMES = {aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG}
HELLO_SECONDS = 30.0
"""Seconds after which a connection is dead on which Slack has not sent its hello."""

TOO_MANY_CONNECTIONS_SECONDS = 30.0
"""Seconds to wait when too many connections are open."""

HandleEnvelope = Callable[[SocketModeRequest], Awaitable[BoltResponse]]
"""Store an envelope; a response other than 200 means that it was not stored."""

log = structlog.get_logger(__name__)


class SocketSession:
    """The session of a Socket Mode client: it only opens guarded WebSockets."""

    closed = False

    def __init__(self, api: Api, on_failure: Callable[[ChannelError], Awaitable[None]]) -> None:
        self._api = api
        self._on_failure = on_failure

    async def ws_connect(
        self, url: str, *, heartbeat: float, **_others: Any
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a connection; after a failure wait, and raise ChannelError."""
        try:
            return await self._api.open_socket(url, heartbeat=heartbeat)
        except ChannelError as error:
            await self._on_failure(error)
            raise

    async def close(self) -> None:
        """Leave the session open, which others use."""


class OrderedSocketModeClient(SocketModeClient):
    """Slack's client for one app, whose envelopes are stored one after the other, then acknowledged."""

    def __init__(
        self,
        api: Api,
        handle: HandleEnvelope,
        backoff: Backoff,
        catch_up: CatchUp,
        unread: UnreadRooms,
        *,
        hello_seconds: float,
    ) -> None:
        token = api.settings.app_token
        super().__init__(
            token.get_secret_value() if token else "",
            logger=SDK_LOG,
            web_client=api.web,
            ping_interval=PING_SECONDS,
        )
        self._api = api
        self._handle = handle
        self._backoff = backoff
        self._catch_up = catch_up
        self._held = HeldUpdates(unread, self._store)
        self._own_session = self.aiohttp_client_session
        self._delay_seconds = 0.0
        self._hello_seconds = hello_seconds
        self._has_hello = False
        self._is_replacing = True
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.aiohttp_client_session = cast("aiohttp.ClientSession", SocketSession(api, self._on_failure))
        self.proxy = None  # the SDK reads one from the environment
        self.message_queue = asyncio.Queue(MAX_QUEUED)
        self.socket_mode_request_listeners.append(self._store_and_ack)

    async def run(self) -> None:
        """Receive until cancelled; raises ChannelError when only an operator can help."""
        await self._own_session.close()
        try:
            await self.connect()  # type: ignore[no-untyped-call]
            await self._ended
        finally:
            await self._held.close()
            tasks = (self.message_processor, self.current_session_monitor, self.message_receiver)
            await self.close()  # type: ignore[no-untyped-call]
            await asyncio.wait([task for task in tasks if task is not None], timeout=CLOSE_SECONDS)

    async def issue_new_wss_url(self) -> str:
        """Return the URL of the next connection, when Slack gives one; raises ChannelError at the end."""
        if self.closed:
            raise Unreachable("socket: this client is closed")
        if not self._is_replacing:
            self._backoff.receiving(INTERRUPTED, "Slack closed the connection")
        self._is_replacing = False
        delay, self._delay_seconds = self._delay_seconds, 0.0
        await asyncio.sleep(delay)
        while True:
            try:
                return await self._api.socket_url()
            except ChannelError as error:
                await self._on_failure(error)

    async def receive_messages(self) -> None:
        """Queue the frames of one connection, and open the next connection when it ends."""
        socket = self.current_session
        if socket is None:
            return
        self._has_hello = False
        try:
            async with asyncio.timeout(self._hello_seconds) as limit:
                while not self.closed and await self._receive_frame(socket):
                    limit.reschedule(None if self._has_hello else limit.when())
        except TimeoutError:
            self._is_replacing = True
            self._backoff.receiving(INTERRUPTED, "Slack sent no hello on a new connection")
        await socket.close()
        with suppress(ChannelError):  # `run` raises it
            await self.connect_to_new_endpoint()

    async def _receive_frame(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Receive one frame; return whether the connection is still to be used."""
        frame = await socket.receive()
        match frame.type:
            case aiohttp.WSMsgType.TEXT:
                return await self._queue_message(parse_json(frame.data))
            case aiohttp.WSMsgType.PING:
                await socket.pong(frame.data)
            case aiohttp.WSMsgType.PONG:
                self.last_ping_pong_time = None
        return frame.type in _OPEN_FRAMES

    async def _queue_message(self, message: object) -> bool:
        """Queue a message to be processed; a disconnect is acted on at once and ends the connection."""
        if not isinstance(message, dict):
            return True
        if message.get("type") == "disconnect":
            self._prepare_replacement(message.get("reason"))
            return False
        self._has_hello = self._has_hello or message.get("type") == "hello"
        await self.message_queue.put(message)
        return True

    async def process_message(self) -> None:
        """Process the next message, and return when it is stored and acknowledged."""
        message: dict[str, Any] = await self.message_queue.get()
        if message.get("type") == "hello":
            await self._on_hello()
            return
        await self.run_message_listeners({**message, "payload": mapping(message.get("payload"))}, "")

    async def _on_hello(self) -> None:
        """Note what was missed before anything else is processed; connect again if that fails."""
        try:
            await self._catch_up.begin()
        except Exception as error:  # noqa: BLE001 - the next connection tries again
            log.warning("slack.catch_up_failed", error=repr(error))
            await self._backoff.pause()
            await self._start_again()
            return
        self._backoff.reset()
        self._backoff.receiving(RECEIVING)

    def _prepare_replacement(self, reason: object) -> None:
        """Note how the next connection is opened; end if none would be of use."""
        self._is_replacing = True
        if reason == "link_disabled":
            self._fail(Unauthorized("Socket Mode is disabled for this app: enable it, or set mode = http"))
        elif reason == "too_many_websockets":
            self._delay_seconds = TOO_MANY_CONNECTIONS_SECONDS
            self._backoff.receiving(INTERRUPTED, "the app has too many Socket Mode connections")

    async def _store_and_ack(self, _client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        """Store an envelope and acknowledge it, or hold it until what was missed in its room is stored."""
        if not await self._held.hold(_room_of(request), request):
            await self._store(request)

    async def _store(self, request: SocketModeRequest) -> None:
        """Store an envelope, then acknowledge it; later ones wait, so that order is kept."""
        for pause in BACKOFF_SECONDS:
            answer = await self._handle(request)
            if answer.status == 200:  # noqa: PLR2004 - as Bolt's own adapter
                with suppress(aiohttp.ClientError, OSError):  # Slack sends it again, with the same key
                    await send_async_response(self, request, answer, 0.0)
                return
            await asyncio.sleep(pause)
        await self._start_again()

    async def _start_again(self) -> None:
        """Drop what was read ahead; on the next connection Slack sends all of it again, in order."""
        self._backoff.receiving(INTERRUPTED, "an update cannot be stored")
        while not self.message_queue.empty():
            self.message_queue.get_nowait()
        self._held.drop()
        self._is_replacing = True
        if self.current_session is not None:
            await self.current_session.close()

    async def _on_failure(self, error: ChannelError) -> None:
        """Wait before the next attempt, with a new URL; end if only an operator can help."""
        self.wss_uri = None
        try:
            await self._backoff.back_off(error)
        except ChannelError:
            self._fail(error)
            raise

    def _fail(self, error: ChannelError) -> None:
        """End `run` with an error."""
        self.closed = True
        if not self._ended.done():
            self._ended.set_exception(error)


def _room_of(request: SocketModeRequest) -> str:
    """Return the room of an event, "" for a command or an interaction: a person waits for the response."""
    event = mapping(request.payload.get("event")) if request.type == "events_api" else {}
    return clean(event.get("channel") or mapping(event.get("item")).get("channel"))
