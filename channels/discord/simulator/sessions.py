"""The simulated gateway: hello, identify, resume with replay, heartbeats, reconnects, invalid sessions.

Clients may ask for `compress=zlib-stream`; then each frame ends with a flush of the connection's one stream.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from channels.discord.simulator.world import Raw, World

GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 9, 1 << 12, 1 << 15
GUILD_REACTIONS, DIRECT_REACTIONS = 1 << 10, 1 << 13
PRIVILEGED = MESSAGE_CONTENT | 1 << 1 | 1 << 8
MESSAGE_EVENTS = {"MESSAGE_CREATE", "MESSAGE_UPDATE"}
SESSION_SECONDS = 180.0
"""How long a session without a connection can be resumed; Discord states no number."""

MAX_FRAMES, FRAMES_SECONDS = 120, 60.0
"""A connection that sends more frames in this time is closed (4008)."""

SESSION_ENDING_CODES = {1000, 1001}
"""Close codes by the client that end its session."""


class ClientConnection:
    """One connection, compressed if the client asked for it."""

    def __init__(self, socket: web.WebSocketResponse, *, compressed: bool) -> None:
        self.socket = socket
        self.is_compressed = compressed
        self._frame_times: deque[float] = deque(maxlen=MAX_FRAMES)
        self._stream = zlib.compressobj() if compressed else None

    async def send(self, text: str) -> None:
        """Send a frame; if the client is gone, a resume replays it."""
        if self.socket.closed:
            return
        try:
            if self._stream is None:
                await self.socket.send_str(text)
            else:
                flushed = self._stream.compress(text.encode()) + self._stream.flush(zlib.Z_SYNC_FLUSH)
                await self.socket.send_bytes(flushed)
        except ConnectionError:
            return

    def count_frame(self) -> None:
        """Count a frame of the client; raises CloseConnection for too many."""
        now = time.monotonic()
        if len(self._frame_times) == MAX_FRAMES and now - self._frame_times[0] < FRAMES_SECONDS:
            raise CloseConnection(4008)
        self._frame_times.append(now)

    async def close(self, code: int | None) -> None:
        """Close with a code, or cut the connection without one."""
        request = self.socket._req  # noqa: SLF001 - aiohttp shows the transport nowhere else
        if code is not None:
            await self.socket.close(code=code)
        elif request is not None and request.transport is not None:
            request.transport.abort()


@dataclass(slots=True)
class SimulatedSession:
    """The events sent to a client, for a replay."""

    id: str
    intents: int
    shard: tuple[int, int] = (0, 1)
    sent: list[str] = field(default_factory=list)
    connection: ClientConnection | None = None
    left_at: float = 0.0

    @property
    def sequence(self) -> int:
        """The number of the last event."""
        return len(self.sent)

    def receives_from(self, guild: str | None) -> bool:
        """Return whether this shard receives the events of a server, or private ones."""
        number, count = self.shard
        return (0 if guild is None else (int(guild) >> 22) % count) == number


class CloseConnection(Exception):
    """Closes the connection with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


class SimulatedGateway:
    """All connections of the bot."""

    def __init__(self, world: World, token: str) -> None:
        self._world = world
        self.token = token
        self.url = ""
        self.interval = 41.25
        self.ignores_heartbeats = False
        self.refusals = 0
        self.required_shards = 1
        self.fatal: int | None = None
        self.granted = PRIVILEGED
        self.sessions: dict[str, SimulatedSession] = {}
        self.identified = 0
        self.resumed = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one client connection."""
        if self.refusals > 0:
            self.refusals -= 1
            await self._world.notify_changed()
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        line = ClientConnection(socket, compressed=request.query.get("compress") == "zlib-stream")
        session: SimulatedSession | None = None
        await self._send(line, {"op": 10, "d": {"heartbeat_interval": int(self.interval * 1000)}})
        try:
            async for message in socket:
                if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                    line.count_frame()
                    session = await self._handle_frame(line, session, _parse_frame(message.data))
        except CloseConnection as closed:
            await socket.close(code=closed.code)
        except ConnectionError:  # the client disconnected during a frame
            pass
        finally:
            self._disconnect(session, line)
        return socket

    def _disconnect(self, session: SimulatedSession | None, connection: ClientConnection) -> None:
        if session is not None and session.connection is connection:
            session.connection, session.left_at = None, self._world.now()
            if connection.socket.close_code in SESSION_ENDING_CODES:
                self.sessions.pop(session.id, None)

    async def _handle_frame(
        self, connection: ClientConnection, session: SimulatedSession | None, frame: Raw
    ) -> SimulatedSession | None:
        match frame.get("op"):
            case 1:
                if not self.ignores_heartbeats:
                    await self._send(connection, {"op": 11})
            case 2 if session is None:
                return await self._identify(connection, frame["d"])
            case 6 if session is None:
                return await self._resume(connection, frame["d"])
            case 2 | 6:
                raise CloseConnection(4005)
            case 3 | 4 | 8:  # presence, voice state, member list: not simulated
                pass
            case _:
                raise CloseConnection(4001)
        return session

    async def _identify(self, connection: ClientConnection, content: Raw) -> SimulatedSession:
        self._check(content)
        shard = self._check_shard(content.get("shard") or [0, 1])
        self.identified += 1
        session = SimulatedSession(
            f"session-{self.identified}", int(content["intents"]), shard, connection=connection
        )
        self.sessions[session.id] = session
        guilds = [
            {"id": number, "unavailable": True}
            for number in self._world.guilds
            if session.receives_from(number)
        ]
        ready = {
            "v": 10,
            "user": self._world.bot,
            "guilds": guilds,
            "private_channels": [],
            "session_type": "normal",
            "session_id": session.id,
            "resume_gateway_url": self.url,
            "application": {"id": self._world.application, "flags": 1 << 19},
            "shard": list(shard),
        }
        await self._dispatch(session, "READY", ready)
        for guild in guilds:
            await self._dispatch(session, "GUILD_CREATE", self._world.guild(str(guild["id"])))
        await self._world.notify_changed()
        return session

    async def _resume(self, connection: ClientConnection, content: Raw) -> SimulatedSession | None:
        self._check(content)
        session, known = self.sessions.get(content["session_id"]), content["seq"]
        is_over = session is not None and session.connection is None and self._is_expired(session)
        if session is None or is_over or known > session.sequence:
            self.sessions.pop(content["session_id"], None)
            await self._send(connection, {"op": 9, "d": False})
            return None
        self.resumed += 1
        for event in session.sent[known:]:
            await connection.send(event)
        session.connection = connection
        await self._dispatch(session, "RESUMED", {})
        await self._world.notify_changed()
        return session

    def _check(self, content: Raw) -> None:
        if content.get("token") != self.token:
            raise CloseConnection(4004)
        if self.fatal is not None:
            raise CloseConnection(self.fatal)
        if int(content.get("intents") or 0) & PRIVILEGED & ~self.granted:
            raise CloseConnection(4014)

    def _is_expired(self, session: SimulatedSession) -> bool:
        return self._world.now() - session.left_at > SESSION_SECONDS

    def _check_shard(self, shard: Any) -> tuple[int, int]:
        """Return the shard of an identify; closes the connection if it is none, or if more are required."""
        number, count = shard
        if not 0 <= int(number) < int(count):
            raise CloseConnection(4010)
        if int(count) < self.required_shards:
            raise CloseConnection(4011)
        return int(number), int(count)

    async def emit(self, name: str, content: Any, *, private: bool = False) -> None:
        """Send an event to every session with its intent; a disconnected one receives it on resume."""
        needed = _required_intents(name, private=private)
        guild = _guild_of(name, content)
        for session in list(self.sessions.values()):
            if (needed and not session.intents & needed) or not session.receives_from(guild):
                continue
            await self._dispatch(
                session, name, self._visible_content(session, name, content, private=private)
            )
        await self._world.notify_changed()

    def _visible_content(self, session: SimulatedSession, name: str, content: Any, *, private: bool) -> Any:
        """Return the event's content, blank without the privileged intent."""
        if name not in MESSAGE_EVENTS or private or session.intents & MESSAGE_CONTENT:
            return content
        ours = content.get("mentions") or content.get("author", {}).get("id") == self._world.bot["id"]
        return content if ours else {**content, "content": "", "attachments": [], "components": []}

    async def _dispatch(self, session: SimulatedSession, name: str, content: Any) -> None:
        event = json.dumps({"op": 0, "t": name, "s": session.sequence + 1, "d": content})
        session.sent.append(event)
        if session.connection is not None:
            await session.connection.send(event)

    async def _send(self, connection: ClientConnection, frame: Raw) -> None:
        await connection.send(json.dumps(frame))

    async def send_raw(self, text: str) -> None:
        """Send any text to every connection."""
        for session in list(self.sessions.values()):
            if session.connection is not None:
                await session.connection.send(text)

    async def send_command(self, op: int, content: Any = None) -> None:
        """Send an opcode to every connection: 7 reconnect, 9 invalid session."""
        await self.send_raw(json.dumps({"op": op, "d": content}))

    async def disconnect_all(self, *, code: int | None = None) -> None:
        """Close every connection with a code, or cut it without one."""
        for session in list(self.sessions.values()):
            line, session.connection = session.connection, None
            session.left_at = self._world.now()
            if line is not None:
                await line.close(code)
        await asyncio.sleep(0)

    def connected_shards(self) -> set[tuple[int, int]]:
        """Return the shards that are connected: number and count."""
        return {session.shard for session in self.sessions.values() if session.connection is not None}

    def clear(self) -> None:
        """Delete all sessions, so that none can be resumed."""
        self.sessions.clear()


def _required_intents(name: str, *, private: bool) -> int:
    """Return the intents of which one admits an event; none if everyone receives it."""
    if name.startswith("MESSAGE_REACTION_"):
        return DIRECT_REACTIONS if private else GUILD_REACTIONS
    if name.startswith("MESSAGE_"):
        return DIRECT_MESSAGES if private else GUILD_MESSAGES
    return 0


def _guild_of(name: str, content: Any) -> str | None:
    """Return the server of an event; None for a private one."""
    key = "id" if name in {"GUILD_CREATE", "GUILD_DELETE"} else "guild_id"
    found = content.get(key) if isinstance(content, dict) else None
    return found if isinstance(found, str) and found.isdecimal() else None


def _parse_frame(text: str | bytes) -> Raw:
    try:
        frame = json.loads(text)
    except ValueError:
        raise CloseConnection(4002) from None
    if not isinstance(frame, dict):
        raise CloseConnection(4002)
    return frame
