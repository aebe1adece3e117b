"""The simulated gateway: hello, identify, resume with replay, heartbeats."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from channels.discord.simulator.world import Raw, World

GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 9, 1 << 12, 1 << 15
FOREVER = {1000, 1001}
"""Closes by the client that end its session."""


@dataclass(slots=True)
class Session:
    """What was sent to a client, so that it can be sent again."""

    id: str
    intents: int
    sent: list[Raw] = field(default_factory=list)
    socket: web.WebSocketResponse | None = None

    @property
    def sequence(self) -> int:
        """The number of the last event."""
        return len(self.sent)


class Closed(Exception):
    """The connection is closed by us, with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


class Sessions:
    """All connections of the bot."""

    def __init__(self, world: World, token: str) -> None:
        self._world = world
        self.token = token
        self.url = ""
        self.interval = 41.25
        self.is_deaf = False
        self.refusals = 0
        self.fatal: int | None = None
        self.sessions: dict[str, Session] = {}
        self.identified = 0
        self.resumed = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Talk with one client."""
        if self.refusals > 0:
            self.refusals -= 1
            await self._world.announce()
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        session: Session | None = None
        await self._send(socket, {"op": 10, "d": {"heartbeat_interval": int(self.interval * 1000)}})
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    session = await self._follow(socket, session, _frame(message.data))
        except Closed as closed:
            await socket.close(code=closed.code)
        except ConnectionError:  # the client left in the middle of a word
            pass
        finally:
            self._leave(session, socket)
        return socket

    def _leave(self, session: Session | None, socket: web.WebSocketResponse) -> None:
        if session is not None and session.socket is socket:
            session.socket = None
            if socket.close_code in FOREVER:
                self.sessions.pop(session.id, None)

    async def _follow(
        self, socket: web.WebSocketResponse, session: Session | None, frame: Raw
    ) -> Session | None:
        match frame.get("op"):
            case 1:
                if not self.is_deaf:
                    await self._send(socket, {"op": 11})
            case 2 if session is None:
                return await self._identify(socket, frame["d"])
            case 6 if session is None:
                return await self._resume(socket, frame["d"])
            case 2 | 6:
                raise Closed(4005)
            case _:
                raise Closed(4001)
        return session

    async def _identify(self, socket: web.WebSocketResponse, content: Raw) -> Session:
        self._check(content)
        self.identified += 1
        session = Session(f"session-{self.identified}", int(content["intents"]), socket=socket)
        self.sessions[session.id] = session
        guilds = [{"id": number, "unavailable": True} for number in self._world.guilds]
        ready = {
            "v": 10,
            "user": self._world.bot,
            "guilds": guilds,
            "session_id": session.id,
            "resume_gateway_url": self.url,
            "application": {"id": self._world.application, "flags": 1 << 19},
        }
        await self._dispatch(session, "READY", ready)
        for number in list(self._world.guilds):
            await self._dispatch(session, "GUILD_CREATE", self.guild(number))
        await self._world.announce()
        return session

    def guild(self, number: str) -> Raw:
        """Return a server with its channels, as the event that tells of it has them."""
        inside = [channel for channel in self._world.channels.values() if channel.guild == number]
        return {
            **self._world.guilds[number],
            "channels": [channel.raw for channel in inside if not channel.parent],
            "threads": [channel.raw for channel in inside if channel.parent],
        }

    async def _resume(self, socket: web.WebSocketResponse, content: Raw) -> Session | None:
        self._check(content)
        session, known = self.sessions.get(content["session_id"]), content["seq"]
        if session is None or known > session.sequence:
            await self._send(socket, {"op": 9, "d": False})
            return None
        self.resumed += 1
        for event in session.sent[known:]:
            await self._send(socket, event)
        session.socket = socket
        await self._dispatch(session, "RESUMED", {})
        await self._world.announce()
        return session

    def _check(self, content: Raw) -> None:
        if content.get("token") != self.token:
            raise Closed(4004)
        if self.fatal is not None:
            raise Closed(self.fatal)

    async def tell(self, name: str, content: Any, *, private: bool = False) -> None:
        """Send an event to every session that asked for its kind; one without a connection gets it later."""
        needed = DIRECT_MESSAGES if private else GUILD_MESSAGES
        for session in list(self.sessions.values()):
            if name.startswith("MESSAGE_") and not session.intents & needed:
                continue
            await self._dispatch(session, name, self._shown(session, name, content, private=private))
        await self._world.announce()

    def _shown(self, session: Session, name: str, content: Any, *, private: bool) -> Any:
        """Without the privileged intent, what does not concern the bot has no content."""
        if not name.startswith("MESSAGE_") or private or session.intents & MESSAGE_CONTENT:
            return content
        ours = content.get("mentions") or content.get("author", {}).get("id") == self._world.bot["id"]
        return content if ours else {**content, "content": "", "attachments": [], "components": []}

    async def _dispatch(self, session: Session, name: str, content: Any) -> None:
        event = {"op": 0, "t": name, "s": session.sequence + 1, "d": content}
        session.sent.append(event)
        if session.socket is not None:
            await self._send(session.socket, event)

    async def _send(self, socket: web.WebSocketResponse, frame: Raw) -> None:
        if not socket.closed:
            try:
                await socket.send_str(json.dumps(frame))
            except ConnectionError:  # it is replayed when the client resumes
                return

    async def raw(self, text: str) -> None:
        """Send any text to every connection."""
        for session in self.sessions.values():
            if session.socket is not None:
                await session.socket.send_str(text)

    async def drop(self, *, code: int | None = None) -> None:
        """Break every connection, without a word or with a code."""
        for session in self.sessions.values():
            socket, session.socket = session.socket, None
            if socket is None:
                continue
            if code is not None:
                await socket.close(code=code)
            elif (transport := socket._req.transport if socket._req else None) is not None:  # noqa: SLF001
                transport.abort()
        await asyncio.sleep(0)

    def forget(self) -> None:
        """No session can be resumed any more."""
        self.sessions.clear()


def _frame(text: str) -> Raw:
    try:
        frame = json.loads(text)
    except ValueError:
        raise Closed(4002) from None
    if not isinstance(frame, dict):
        raise Closed(4002)
    return frame
