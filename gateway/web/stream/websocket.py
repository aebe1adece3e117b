"""The WebSocket: subscriptions, messages, approvals and cancellations."""

from __future__ import annotations

import asyncio
import math
import socket as sockets
from contextlib import aclosing, suppress
from http import HTTPStatus

from aiohttp import WSMsgType, web

from delivery.database.engine import DatabaseUnavailable
from delivery.errors import DeliveryError
from delivery.events.replay import CaughtUp, Events, Frame, Reset, frames
from delivery.exhaustion import EXHAUSTED, exhausted_resource
from gateway.accounts.api_keys import Principal
from gateway.config.sign_in_settings import KeyScope
from gateway.web.http.problems import HttpProblem
from gateway.web.stream import subprotocols
from gateway.web.stream.frames import (
    ApproveFrame,
    AuthenticateFrame,
    CancelFrame,
    ClientFrame,
    EncodedFrame,
    InvalidFrame,
    PingFrame,
    ProtocolError,
    SendFrame,
    StreamCursor,
    SubscribeFrame,
    UnsubscribeFrame,
    encode_frames,
    encode_json,
    parse,
    parse_cursor,
)
from gateway.web.stream.readers import StreamReader, StreamReaders
from gateway.web.stream.send_buffer import ClientTooSlow, SendBuffer
from gateway.web.stream.services import StreamServices

FRAME_BYTES = 64 * 1024
SUBSCRIPTIONS = 16
PING_EVERY = 20.0
"""Seconds; aiohttp waits half of it for the pong."""
AUTHENTICATE_SECONDS = 10.0
CLOSE_TIMEOUT = 4.0
_SEND_BUFFER = 128 * 1024
_MAX_UNSENT_BYTES = 8 * 1024
"""Unsent bytes per connection, in the kernel and here each; bytes in flight do not count."""
_RETRY_SECONDS = 0.5

BAD_FRAME = 4400
NOT_AUTHENTICATED = 4401
TOO_SLOW = 4408
TOO_MANY = 4429
MAX_REFUSED_FRAMES = 10
"""Frames above the rate limit, one after the other, after which the connection is closed."""
TRY_LATER = 1013


class _CloseConnection(Exception):
    """The connection must close with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


async def serve(
    request: web.Request, services: StreamServices, readers: StreamReaders, principal: Principal | None
) -> web.WebSocketResponse:
    """Upgrade the request and serve the WebSocket until it closes."""
    response = web.WebSocketResponse(
        heartbeat=PING_EVERY,
        max_msg_size=FRAME_BYTES,
        compress=False,
        protocols=(subprotocols.PROTOCOL,),
        writer_limit=_MAX_UNSENT_BYTES,
        timeout=CLOSE_TIMEOUT,
    )
    if not response.can_prepare(request):
        raise HttpProblem(426, "this path needs a WebSocket upgrade", headers={"Upgrade": "websocket"})
    with readers.register(principal) as reader:
        await response.prepare(request)
        _bound_buffers(request)
        await _Session(request, response, services, reader).run()
    return response


def _unavailable(error: DatabaseUnavailable | DeliveryError) -> str:
    """Return what a client may read of an error: its text can have the address of a server."""
    resource = exhausted_resource(error)
    if resource:
        return EXHAUSTED[resource]
    server = "the database" if isinstance(error, DatabaseUnavailable) else "the event log"
    return f"{server} does not answer; try again soon"


def _bound_buffers(request: web.Request) -> None:
    """Bound the unsent bytes of a peer that does not read; TCP decides how much is in flight."""
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)
    raw = request.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER)
            raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)


class _Session:
    """The session of one WebSocket."""

    __slots__ = (
        "_reader",
        "_refused_frames",
        "_request",
        "_send_buffer",
        "_services",
        "_socket",
        "_subscriptions",
    )

    def __init__(
        self,
        request: web.Request,
        response: web.WebSocketResponse,
        services: StreamServices,
        reader: StreamReader,
    ) -> None:
        self._request = request
        self._socket = response
        self._services = services
        self._reader = reader
        self._send_buffer = SendBuffer(response)
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._refused_frames = 0

    async def run(self) -> None:
        """Read and write frames until one side closes the connection."""
        tasks = [asyncio.create_task(self._read_frames()), asyncio.create_task(self._send_buffer.run())]
        try:
            await asyncio.wait([*tasks, self._reader.closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            everything = [*tasks, *self._subscriptions.values()]
            for task in everything:
                task.cancel()
            ends = await asyncio.gather(*everything, return_exceptions=True)
            await self._close(
                next((end for end in ends if isinstance(end, _CloseConnection | ClientTooSlow)), None)
            )

    async def _close(self, cause: BaseException | None) -> None:
        if isinstance(cause, ClientTooSlow):
            self._reader.close(TOO_SLOW, f"too slow; last seq {self._send_buffer.last_seq}")
        elif isinstance(cause, _CloseConnection):
            self._reader.close(cause.code, cause.reason)
            with suppress(ClientTooSlow, ConnectionError):
                await self._send_buffer.flush()
        code = self._reader.code
        closing = asyncio.create_task(
            self._socket.close(code=code, message=self._reader.reason.encode()[:120], drain=False)
        )
        _, late = await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT)
        if late:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
        if self._request.transport is not None and code == TOO_SLOW:
            self._request.transport.abort()  # otherwise unread data would keep the connection open

    async def _read_frames(self) -> None:
        deadline = asyncio.get_running_loop().time() + AUTHENTICATE_SECONDS
        while True:
            text = await self._receive(deadline)
            await asyncio.sleep(0)  # frames that have arrived already must not keep other clients waiting
            try:
                self._count_frame()
                await self._handle(parse(text))
            except InvalidFrame as error:
                raise _CloseConnection(BAD_FRAME, str(error)) from None
            except ProtocolError as error:
                await self._send({"type": "error", "code": error.code, "detail": error.detail} | error.fields)
            except (DatabaseUnavailable, DeliveryError) as error:
                await self._send({"type": "error", "code": "unavailable", "detail": _unavailable(error)})

    def _count_frame(self) -> None:
        """Count a frame of any kind, valid or not, for the key's rate limit; raises once it is used up."""
        if self._reader.principal is None:
            return  # nothing but an authentication is accepted, and that only once
        state = self._services.count_frame(self._reader.principal)
        if state.allowed:
            self._refused_frames = 0
            return
        self._refused_frames += 1
        quota = f"{state.quota} requests and frames per minute (DOVECOTE_REQUESTS_PER_MINUTE)"
        detail = f"more than {quota}; slow down"
        if self._refused_frames > MAX_REFUSED_FRAMES:
            raise _CloseConnection(TOO_MANY, detail)
        raise ProtocolError("too_many", detail, {"retry_after": math.ceil(state.retry_after)})

    async def _receive(self, deadline: float) -> str:
        try:
            async with asyncio.timeout_at(deadline if self._reader.principal is None else None):
                message = await self._socket.receive()
        except TimeoutError:
            raise _CloseConnection(NOT_AUTHENTICATED, "authenticate first") from None
        if message.type is WSMsgType.TEXT:
            return str(message.data)
        if message.type is WSMsgType.BINARY:
            raise _CloseConnection(BAD_FRAME, "frames must be text")
        raise _CloseConnection(self._socket.close_code or 1000, "")

    async def _handle(self, frame: ClientFrame) -> None:
        principal = self._reader.principal
        if principal is None:
            await self._authenticate(frame)
            return
        match frame:
            case PingFrame():
                await self._send({"type": "pong"})
            case SubscribeFrame():
                await self._subscribe(_require_scope(principal, "read", frame), frame)
            case UnsubscribeFrame():
                await self._unsubscribe(principal, frame)
            case AuthenticateFrame():
                raise ProtocolError("invalid", "this connection is already authenticated")
            case _:
                await self._handle_command(principal, frame)

    async def _handle_command(
        self, principal: Principal, frame: SendFrame | ApproveFrame | CancelFrame
    ) -> None:
        match frame:
            case SendFrame():
                accepted = await self._services.submit(_require_scope(principal, "chat", frame), frame)
                await self._send(accepted.frame(frame.id))
            case ApproveFrame():
                await self._services.decide(_require_scope(principal, "chat", frame), frame)
            case CancelFrame():
                await self._services.cancel(_require_scope(principal, "chat", frame), frame)

    async def _authenticate(self, frame: ClientFrame) -> None:
        if not isinstance(frame, AuthenticateFrame):
            raise _CloseConnection(NOT_AUTHENTICATED, "authenticate first")
        try:
            self._reader.principal = await self._services.authenticate(self._request, frame.key)
        except HttpProblem as problem:
            wrong = problem.status == HTTPStatus.UNAUTHORIZED
            raise _CloseConnection(NOT_AUTHENTICATED if wrong else TRY_LATER, problem.detail) from None

    async def _subscribe(self, principal: Principal, frame: SubscribeFrame) -> None:
        conversation = await self._services.get_or_create_conversation(principal, frame.conversation)
        if conversation is None:
            raise ProtocolError(
                "not_found", "there is no such conversation", {"conversation": frame.conversation}
            )
        await self._cancel_subscription(conversation)
        if len(self._subscriptions) >= SUBSCRIPTIONS:
            detail = f"at most {SUBSCRIPTIONS} subscriptions a connection"
            raise ProtocolError("too_many", detail, {"conversation": frame.conversation})
        following = self._follow(
            principal.account, conversation, _start_cursor(frame), deltas=frame.deltas, batch=frame.batch
        )
        self._subscriptions[conversation] = asyncio.create_task(following)

    async def _unsubscribe(self, principal: Principal, frame: UnsubscribeFrame) -> None:
        conversation = await self._services.find_conversation(principal, frame.conversation)
        if conversation is None or not await self._cancel_subscription(conversation):
            raise ProtocolError(
                "not_found", "there is no such subscription", {"conversation": frame.conversation}
            )

    async def _cancel_subscription(self, conversation: str) -> bool:
        task = self._subscriptions.pop(conversation, None)
        if task is None:
            return False
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return True

    async def _follow(
        self, account: str, conversation: str, cursor: StreamCursor | None, *, deltas: bool, batch: bool
    ) -> None:
        while True:
            source = frames(
                self._services.stream,
                conversation,
                account=account,
                after=cursor.seq if cursor else None,
                epoch=cursor.epoch if cursor else None,
                deltas=deltas,
                published_seq=self._services.published_seq,
            )
            try:
                async with aclosing(source):
                    async for found in source:
                        cursor = _advance(cursor, found)
                        for text in encode_frames(found, conversation, batch=batch):
                            await self._send_buffer.put(text)
            except DeliveryError:  # NATS is unavailable before the first frame, or refuses
                await asyncio.sleep(_RETRY_SECONDS)

    async def _send(self, shape: dict[str, object]) -> None:
        await self._send_buffer.put(EncodedFrame(encode_json(shape)))


def _require_scope(principal: Principal, scope: KeyScope, frame: ClientFrame) -> Principal:
    """Return the principal if its key may do this."""
    if scope not in principal.scopes:
        about = {"id": frame.id} if isinstance(frame, SendFrame) else {}
        raise ProtocolError("forbidden", f"this key does not have the scope {scope!r}", about)
    return principal


def _start_cursor(frame: SubscribeFrame) -> StreamCursor | None:
    """Return the position a subscription starts from, None for the live edge."""
    cursor = parse_cursor(frame.after) if frame.after is not None else None
    if cursor is not None and cursor.epoch is None:
        return StreamCursor(cursor.seq, frame.epoch)
    return cursor


def _advance(cursor: StreamCursor | None, frame: Frame) -> StreamCursor | None:
    """Return the cursor from which to continue after a frame."""
    match frame:
        case Reset():
            return StreamCursor(0, frame.epoch)
        case CaughtUp():
            return StreamCursor(frame.seq, cursor.epoch if cursor else None)
        case Events():
            return StreamCursor(frame.items[-1].seq, cursor.epoch if cursor else None)
    return cursor
