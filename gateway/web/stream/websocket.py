"""The WebSocket: a reader of streams that may also speak, approve and cancel."""

from __future__ import annotations

import asyncio
import socket as sockets
from contextlib import aclosing, suppress
from http import HTTPStatus

from aiohttp import WSMsgType, web

from delivery.database.engine import Unavailable
from delivery.errors import DeliveryError
from delivery.events.replay import CaughtUp, Events, Frame, Reset, frames
from gateway.accounts.api_keys import Principal, Scope
from gateway.web.http.problems import Problem
from gateway.web.stream.frames import (
    Approve,
    Authenticate,
    BadFrame,
    Cancel,
    ClientFrame,
    Cursor,
    Mistaken,
    Ping,
    Send,
    Subscribe,
    Unsubscribe,
    Written,
    cursor_of,
    dumped,
    parse,
    written,
)
from gateway.web.stream.readers import Reader, Readers, Readership
from gateway.web.stream.send_buffer import Outgoing, TooSlow

FRAME_BYTES = 64 * 1024
SUBSCRIPTIONS = 16
PING_EVERY = 20.0
"""Seconds; aiohttp waits half of it for the pong."""
AUTHENTICATE_WITHIN = 10.0
LINGER = 4.0
_SEND_BUFFER = 128 * 1024
_UNSENT = 8 * 1024
"""Bytes that wait for a peer's window, in the kernel and here each: what is on its way is not among them."""
_RETRY_SECONDS = 0.5

BAD_FRAME = 4400
NOT_AUTHENTICATED = 4401
TOO_SLOW = 4408
TRY_LATER = 1013


class _Ending(Exception):
    """The connection is over, and this is what the peer is told."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


async def serve(
    request: web.Request, doors: Readership, readers: Readers, principal: Principal | None
) -> web.WebSocketResponse:
    """Upgrade the request and talk until the end."""
    response = web.WebSocketResponse(
        heartbeat=PING_EVERY,
        max_msg_size=FRAME_BYTES,
        compress=False,
        writer_limit=_UNSENT,
        timeout=LINGER,
    )
    if not response.can_prepare(request):
        raise Problem(426, "this path speaks WebSocket", headers={"Upgrade": "websocket"})
    with readers.admitted(principal) as reader:
        await response.prepare(request)
        _bound_buffers(request)
        await _Session(request, response, doors, reader).run()
    return response


def _bound_buffers(request: web.Request) -> None:
    """Keep what is held for a peer who does not read small; how much is in flight stays TCP's affair."""
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=_UNSENT)
    raw = request.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER)
            raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NOTSENT_LOWAT, _UNSENT)


class _Session:
    """One connection's life."""

    __slots__ = ("_doors", "_outgoing", "_reader", "_request", "_socket", "_subscriptions")

    def __init__(
        self,
        request: web.Request,
        response: web.WebSocketResponse,
        doors: Readership,
        reader: Reader,
    ) -> None:
        self._request = request
        self._socket = response
        self._doors = doors
        self._reader = reader
        self._outgoing = Outgoing(response)
        self._subscriptions: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Read, write and follow until one of them ends or we are told to."""
        tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._outgoing.run())]
        try:
            await asyncio.wait([*tasks, self._reader.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            everything = [*tasks, *self._subscriptions.values()]
            for task in everything:
                task.cancel()
            ends = await asyncio.gather(*everything, return_exceptions=True)
            await self._close(next((end for end in ends if isinstance(end, _Ending | TooSlow)), None))

    async def _close(self, why: BaseException | None) -> None:
        if isinstance(why, TooSlow):
            self._reader.end(TOO_SLOW, f"too slow; last seq {self._outgoing.last_seq}")
        elif isinstance(why, _Ending):
            self._reader.end(why.code, why.reason)
            with suppress(TooSlow, ConnectionError):
                await self._outgoing.flush()
        code = self._reader.code
        closing = asyncio.create_task(
            self._socket.close(code=code, message=self._reader.reason.encode()[:120], drain=False)
        )
        _, late = await asyncio.wait({closing}, timeout=LINGER)
        if late:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
        if self._request.transport is not None and code == TOO_SLOW:
            self._request.transport.abort()  # what it did not read would wait here for ever

    async def _listen(self) -> None:
        deadline = asyncio.get_running_loop().time() + AUTHENTICATE_WITHIN
        while True:
            text = await self._receive(deadline)
            try:
                await self._obey(parse(text))
            except BadFrame as error:
                raise _Ending(BAD_FRAME, str(error)) from None
            except Mistaken as error:
                await self._say({"type": "error", "code": error.code, "detail": error.detail} | error.about)
            except (Unavailable, DeliveryError):
                await self._say({"type": "error", "code": "unavailable", "detail": "try again soon"})

    async def _receive(self, deadline: float) -> str:
        try:
            async with asyncio.timeout_at(deadline if self._reader.principal is None else None):
                message = await self._socket.receive()
        except TimeoutError:
            raise _Ending(NOT_AUTHENTICATED, "say who you are first") from None
        if message.type is WSMsgType.TEXT:
            return str(message.data)
        if message.type is WSMsgType.BINARY:
            raise _Ending(BAD_FRAME, "frames are text")
        raise _Ending(self._socket.close_code or 1000, "")

    async def _obey(self, frame: ClientFrame) -> None:
        principal = self._reader.principal
        if principal is None:
            await self._authenticate(frame)
            return
        match frame:
            case Ping():
                await self._say({"type": "pong"})
            case Subscribe():
                await self._subscribe(_with(principal, "read", frame), frame)
            case Unsubscribe():
                await self._unsubscribe(principal, frame)
            case Authenticate():
                raise Mistaken("invalid", "this connection has said who it is")
            case _:
                await self._act(principal, frame)

    async def _act(self, principal: Principal, frame: Send | Approve | Cancel) -> None:
        match frame:
            case Send():
                taken = await self._doors.submit(_with(principal, "chat", frame), frame)
                await self._say(
                    {
                        "type": "accepted",
                        "id": frame.id,
                        "turn": taken.turn,
                        "conversation": taken.conversation,
                    }
                )
            case Approve():
                await self._doors.decide(_with(principal, "chat", frame), frame)
            case Cancel():
                await self._doors.cancel(_with(principal, "chat", frame), frame)

    async def _authenticate(self, frame: ClientFrame) -> None:
        if not isinstance(frame, Authenticate):
            raise _Ending(NOT_AUTHENTICATED, "say who you are first")
        try:
            self._reader.principal = await self._doors.authenticate(self._request, frame.key)
        except Problem as problem:
            wrong = problem.status == HTTPStatus.UNAUTHORIZED
            raise _Ending(NOT_AUTHENTICATED if wrong else TRY_LATER, problem.detail) from None

    async def _subscribe(self, principal: Principal, frame: Subscribe) -> None:
        conversation = await self._doors.enter_conversation(principal, frame.conversation)
        if conversation is None:
            raise Mistaken("not_found", "there is no such conversation", {"conversation": frame.conversation})
        await self._drop(conversation)
        if len(self._subscriptions) >= SUBSCRIPTIONS:
            detail = f"at most {SUBSCRIPTIONS} subscriptions a connection"
            raise Mistaken("too_many", detail, {"conversation": frame.conversation})
        following = self._follow(conversation, _start(frame), deltas=frame.deltas, batch=frame.batch)
        self._subscriptions[conversation] = asyncio.create_task(following)

    async def _unsubscribe(self, principal: Principal, frame: Unsubscribe) -> None:
        conversation = await self._doors.find_conversation(principal, frame.conversation)
        if conversation is None or not await self._drop(conversation):
            raise Mistaken("not_found", "there is no such subscription", {"conversation": frame.conversation})

    async def _drop(self, conversation: str) -> bool:
        task = self._subscriptions.pop(conversation, None)
        if task is None:
            return False
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return True

    async def _follow(self, conversation: str, cursor: Cursor | None, *, deltas: bool, batch: bool) -> None:
        while True:
            source = frames(
                self._doors.stream,
                conversation,
                after=cursor.seq if cursor else None,
                epoch=cursor.epoch if cursor else None,
                deltas=deltas,
            )
            try:
                async with aclosing(source):
                    async for found in source:
                        cursor = _moved(cursor, found)
                        for text in written(found, conversation, batch=batch):
                            await self._outgoing.put(text)
            except DeliveryError:  # the broker is away before the first frame, or refuses us
                await asyncio.sleep(_RETRY_SECONDS)

    async def _say(self, shape: dict[str, object]) -> None:
        await self._outgoing.put(Written(dumped(shape)))


def _with(principal: Principal, scope: Scope, frame: ClientFrame) -> Principal:
    """Return the principal if its key may do this."""
    if scope not in principal.scopes:
        about = {"id": frame.id} if isinstance(frame, Send) else {}
        raise Mistaken("forbidden", f"this key does not have the scope {scope!r}", about)
    return principal


def _start(frame: Subscribe) -> Cursor | None:
    """Return the position a subscription starts from, None for the live edge."""
    cursor = cursor_of(frame.after) if frame.after is not None else None
    if cursor is not None and cursor.epoch is None:
        return Cursor(cursor.seq, frame.epoch)
    return cursor


def _moved(cursor: Cursor | None, frame: Frame) -> Cursor | None:
    """Return where to go on from once a frame has been given."""
    match frame:
        case Reset():
            return Cursor(0, frame.epoch)
        case CaughtUp():
            return Cursor(frame.seq, cursor.epoch if cursor else None)
        case Events():
            return Cursor(frame.items[-1].seq, cursor.epoch if cursor else None)
    return cursor
