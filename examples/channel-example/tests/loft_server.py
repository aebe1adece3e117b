"""A Loft server on loopback, and the rig with which the suite acts on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from channels.inbox.simulator import SimulatedMessage, SimulatedPlatform
from channels.testing.rig import ChannelRig, VisibleMessage

BOT, PERSON, ROOM, TOKEN = "bot", "ada", "attic", "canary-loft-token"


class LoftServer(SimulatedPlatform):
    """Rooms and updates of a simulated Loft; SimulatedPlatform serves them, and makes requests fail."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[dict[str, Any]] = []
        self.sent: list[SimulatedMessage] = []
        self.number, self.token, self.is_member = 0, TOKEN, True

    def routes(self) -> list[web.RouteDef]:
        """Return the API."""
        return [
            web.get("/me", self._me),
            web.get("/updates", self._updates),
            web.post("/messages", self._send),
        ]

    def operation_of(self, request: web.Request) -> str:
        """Name messages "send" and polls "receive"."""
        return {"/messages": "send", "/updates": "receive"}.get(request.path, "other")

    def messages(self, room: Any = None) -> list[SimulatedMessage]:
        """Return the bot's messages."""
        del room  # there is one
        return self.sent

    async def push(
        self, text: str, *, author: str = PERSON, thread: str | None = None, edits: str = ""
    ) -> None:
        """Add an update."""
        self.number += 1
        update = {"number": self.number, "room": ROOM, "thread": thread, "author": author, "text": text}
        message = {"id": edits or f"m{self.number}", "edited": bool(edits), "time": 1767225600}
        self.updates.append({**update, **message})
        await self.notify()

    def _refusal(self, request: web.Request) -> web.Response | None:
        known = request.headers.get("Authorization") == f"Bearer {self.token}"
        return None if known else web.json_response({}, status=401)

    async def _me(self, request: web.Request) -> web.Response:
        return self._refusal(request) or web.json_response({"id": BOT})

    async def _updates(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        self.updates = [update for update in self.updates if update["number"] > after]
        with suppress(TimeoutError):
            await self.wait_until(lambda: self._ends_poll(request), seconds=float(request.query["wait"]))
        return self._refusal(request) or web.json_response(self.updates)

    def _ends_poll(self, request: web.Request) -> bool:
        is_cut = any(fault.operation == "receive" and fault.times for fault in self.faults)
        return bool(self.updates) or is_cut or self._refusal(request) is not None

    async def _send(self, request: web.Request) -> web.Response:
        refusal = self._refusal(request)
        if refusal is not None or not self.is_member:
            return refusal or web.json_response({}, status=403)
        body, number = await request.json(), f"b{len(self.sent) + 1}"
        self.sent.append(
            SimulatedMessage(id=number, room=body["room"], thread=body["thread"], text=body["text"])
        )
        return web.json_response({"id": number})


class LoftRig(ChannelRig):
    """One room of a simulated Loft."""

    secrets = (TOKEN,)
    unknown_sender = "not-the-token"

    def __init__(self, server: LoftServer) -> None:
        self._server = server

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return settings for the bot."""
        return {"url": self._server.url, "token": TOKEN, **others}

    async def say(self, text: str) -> None:
        """Send a message as the person."""
        await self._server.push(text)

    async def say_in_thread(self, text: str) -> str:
        """Send a message in the thread `t1`."""
        await self._server.push(text, thread="t1")
        return "t1"

    async def echo(self, text: str) -> None:
        """Deliver a message of the bot."""
        await self._server.push(text, author=BOT)

    async def send_command(self, text: str) -> None:
        """Send a command as the person."""
        await self._server.push(f"/{text}")

    async def edit_message(self, platform_id: str, text: str) -> None:
        """Change a message of the person."""
        await self._server.push(text, edits=platform_id)

    def visible_messages(self) -> list[VisibleMessage]:
        """Return the bot's messages."""
        return [VisibleMessage(one.room, one.thread, one.text) for one in self._server.messages()]

    def send_count(self) -> int:
        """Return how many sends have arrived."""
        return self._server.counts["send"]

    async def throttle(self, seconds: int) -> None:
        """Answer the next send with 429."""
        self._server.fail("send", 429, headers={"Retry-After": str(seconds)})

    async def fail(self) -> None:
        """Answer the next send with 502."""
        self._server.fail("send", 502)

    async def revoke(self) -> None:
        """Replace the token."""
        self._server.token = "another"
        await self._server.notify()

    async def kick(self) -> None:
        """Remove the bot from the room."""
        self._server.is_member = False

    async def refuse_markup(self) -> None:
        """Do nothing: Loft has no markup."""

    async def cut_receiving(self) -> None:
        """Break four polls."""
        self._server.cut("receive", times=4)
        await self._server.notify()

    async def cut_sending(self, *, carried_out: bool) -> None:
        """Break the next send."""
        self._server.cut("send", carried_out=carried_out)


@asynccontextmanager
async def open_rig() -> AsyncIterator[LoftRig]:
    """Run a simulated Loft, and yield its rig."""
    async with AsyncExitStack() as stack:
        rig = LoftRig(await stack.enter_async_context(LoftServer().serve()))
        rig.stop = stack.aclose
        yield rig
