"""One conversation over the gateway's WebSocket, resumed from its cursor after a disconnect."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from gateway.cli.client import ApiError, GatewayClient
from gateway.cli.errors import CommandFailed, GatewayUnreachable

Frame = Mapping[str, Any]

RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 5.0, 5.0, 5.0)
"""Seconds between reconnection attempts; after the last one the client fails."""

UNREPORTED_FAILURES = 2
"""Attempts after a disconnect that nobody reads about, as during a quick restart."""

DISCONNECTED = "no connection to the gateway; trying again"
CONNECTED_AGAIN = "connected to the gateway again"

FATAL_CLOSE_CODES = {
    4400: "the gateway refused a frame: check that both have the same version",
    4401: "the key is not accepted; pass --key or --data, or set DOVECOTE_KEY",
}
"""Close codes after which reconnecting is useless."""


MAX_FRAME_BYTES = 64 * 1024
"""Bytes of a frame that the gateway accepts. It closes the connection after a longer one, each time again."""

CONNECTION_FRAMES = frozenset({"subscribed", "reset", "caught_up"})
"""Frames that begin a connection: they say nothing about whether the gateway can store a message."""


class MessageTooLong(CommandFailed):
    """A message does not fit into one frame, so it is not sent."""


class _TemporarilyUnavailable(CommandFailed):
    """The gateway answers, but cannot do what a frame asks; the text is its reason."""


class ConversationClient:
    """Follows a conversation live. Messages that were not accepted are sent again after a reconnect."""

    def __init__(
        self,
        gateway: GatewayClient,
        conversation: str,
        *,
        after: int | None = None,
        may_be_new: bool = False,
        retry_delays: Sequence[float] = RETRY_DELAYS,
    ) -> None:
        self._retry_delays = retry_delays
        self._gateway = gateway
        self._may_be_new = may_be_new
        self._conversation = conversation
        self._after = after
        self._epoch: object = None
        self._was_connected = False
        self._unaccepted: dict[str, dict[str, Any]] = {}
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._subscribed = False
        self._may_send = False

    async def send_message(
        self, text: str, *, agent: str | None = None, attachments: Sequence[Mapping[str, str]] = ()
    ) -> str:
        """Send a message; returns the id of its `accepted` frame. Raises MessageTooLong.

        It is sent once the subscription has begun, or is refused because the conversation is new: what is
        published in between would be before the position from which the client follows.

        Each of `attachments` has the `name` and the `url` of a stored file.
        """
        frame: dict[str, Any] = {
            "type": "send",
            "conversation": self._conversation,
            "text": text,
            "id": secrets.token_hex(12),
        }
        if agent:
            frame["agent"] = agent
        if attachments:
            frame["attachments"] = list(attachments)
        if (size := len(_encode(frame).encode())) > MAX_FRAME_BYTES:
            raise MessageTooLong(
                f"the message is too long to send ({size} bytes, at most {MAX_FRAME_BYTES}): "
                "put it into a file with dovecote files put, or send it over HTTP"
            )
        self._unaccepted[frame["id"]] = frame
        if self._may_send:
            await self._send(frame)
        return str(frame["id"])

    async def answer(self, question: str, text: str) -> None:
        """Answer a question of the agent."""
        await self._send({"type": "approve", "approval": question, "answer": text})

    async def decide(self, approval: str, *, approved: bool) -> None:
        """Decide a waiting tool call."""
        decision = "approve" if approved else "deny"
        await self._send({"type": "approve", "approval": approval, "decision": decision})

    async def cancel(self, turn: str) -> None:
        """Cancel a turn with its running command."""
        await self._send({"type": "cancel", "turn": turn})

    async def _send(self, frame: Frame) -> None:
        if self._socket is not None and not self._socket.closed:
            await self._socket.send_str(_encode(frame))

    async def frames(
        self, *, report: Callable[[str], None] | None = None, gives_up: Callable[[], bool] = lambda: True
    ) -> AsyncGenerator[Frame]:
        """Yield every frame, events one by one, across reconnects; `report` gets what a person should read.

        Raises GatewayUnreachable if the first connection fails, or all attempts after a disconnect and
        `gives_up` is true then, and CommandFailed if the gateway refuses all attempts.
        """
        failures = 0
        while True:
            try:
                async for frame in self._unrefused_frames():
                    if report is not None and failures > UNREPORTED_FAILURES:
                        report(CONNECTED_AGAIN)
                    failures = 0
                    yield frame
            except GatewayUnreachable:
                if not self._was_connected or (failures >= len(self._retry_delays) and gives_up()):
                    raise
            if report is not None and failures == UNREPORTED_FAILURES:
                report(DISCONNECTED)
            await asyncio.sleep(self._retry_delays[min(failures, len(self._retry_delays) - 1)])
            failures += 1

    async def _unrefused_frames(self) -> AsyncIterator[Frame]:
        """Yield the frames of a connection until it ends; connects again after an error that may pass."""
        refusals = 0
        while True:
            try:
                async for frame in self._connection_frames():
                    if frame.get("type") not in CONNECTION_FRAMES:
                        refusals = 0
                    yield frame
            except _TemporarilyUnavailable:
                if refusals == len(self._retry_delays):
                    raise
                await asyncio.sleep(self._retry_delays[refusals])
                refusals += 1
            else:
                return

    async def _connection_frames(self) -> AsyncIterator[Frame]:
        """Yield the frames of one connection until it ends."""
        async with self._gateway.socket() as socket:
            self._socket, self._was_connected = socket, True
            self._subscribed = self._may_send = False
            await self._subscribe()
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                for frame in decode_frames(message.data):
                    if await self._track(frame):
                        yield frame
            if socket.close_code in FATAL_CLOSE_CODES:
                raise ApiError(socket.close_code or 0, FATAL_CLOSE_CODES[socket.close_code or 0])

    async def _subscribe(self) -> None:
        frame: dict[str, Any] = {"type": "subscribe", "conversation": self._conversation}
        if self._after is not None:
            frame["after"] = self._after
        if self._epoch is not None:
            frame["epoch"] = self._epoch
        await self._send(frame)

    async def _track(self, frame: Frame) -> bool:
        """Store the cursor of a frame; returns whether the caller should get the frame."""
        kind = frame.get("type")
        if kind == "subscribed":
            self._subscribed = True
            self._epoch = frame.get("epoch")
            self._conversation = str(frame.get("conversation") or self._conversation)
            if self._after is None:
                self._after = int(frame.get("last_seq") or 0)
            await self._send_waiting()
        elif kind == "reset":
            self._epoch, self._after = frame.get("epoch"), 0
        elif kind == "accepted":
            await self._on_accepted(frame)
        elif kind == "error" and self._is_of_new_conversation(frame):
            await self._send_waiting()
            return False
        elif kind == "error":
            return self._on_error(frame)
        elif "seq" in frame:
            self._after = max(self._after or 0, int(frame["seq"]))
        return True

    async def _send_waiting(self) -> None:
        """Send the messages that wait for this connection, once."""
        if not self._may_send:
            self._may_send = True
            for waiting in list(self._unaccepted.values()):
                await self._send(waiting)

    def _is_of_new_conversation(self, frame: Frame) -> bool:
        return "conversation" in frame and frame.get("code") == "not_found" and self._may_be_new

    async def _on_accepted(self, frame: Frame) -> None:
        self._unaccepted.pop(str(frame.get("id")), None)
        self._conversation = str(frame.get("conversation") or self._conversation)
        if not self._subscribed:  # the first message created the conversation
            self._after = 0
            await self._subscribe()

    def _on_error(self, frame: Frame) -> bool:
        """Return whether the caller should get an error; raises for an error of the connection."""
        if frame.get("code") == "unavailable":
            raise _TemporarilyUnavailable(str(frame.get("detail")))
        self._unaccepted.pop(str(frame.get("id")), None)
        if {"id", "approval", "turn"} & set(frame):
            return True
        raise CommandFailed(str(frame.get("detail") or frame.get("code")))


def _encode(frame: Frame) -> str:
    """Return a frame as JSON; letters of all languages stay as they are, which is shorter."""
    text = json.dumps(frame, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8: the gateway refuses their escapes, and says why
        return json.dumps(frame)
    return text


def decode_frames(text: str) -> list[Frame]:
    """Return the frames of one WebSocket message: itself, or the events of a batch."""
    try:
        frame = json.loads(text)
    except ValueError as error:
        raise CommandFailed("the server sent invalid JSON: check that the URL is a gateway's") from error
    if not isinstance(frame, dict):
        raise CommandFailed("the server sent an invalid frame: check that the URL is a gateway's")
    return list(frame["items"]) if frame.get("type") == "events" else [frame]
