"""A Loft server on loopback, and the rig with which the suite acts on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from channels.testing.rig import ChannelRig, VisibleMessage

BOT, PERSON, ROOM, TOKEN = "bot", "ada", "attic", "canary-loft-token"


class LoftServer:
    """Rooms, updates and failures of a simulated Loft."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.messages: list[VisibleMessage] = []
        self.failures: list[web.Response | str] = []
        self.number = self.sends = self.poll_cuts = 0
        self.token, self.is_member, self.url = TOKEN, True, ""
        self.changed = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[web.AppRunner]:
        """Serve the API on a free port."""
        application = web.Application(middlewares=[self._authenticate])
        application.router.add_get("/me", self._me)
        application.router.add_get("/updates", self._updates)
        application.router.add_post("/messages", self._send)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield runner
        finally:
            await runner.cleanup()

    def push(self, text: str, *, author: str = PERSON, thread: str | None = None, edits: str = "") -> None:
        """Add an update."""
        self.number += 1
        update = {"number": self.number, "room": ROOM, "thread": thread, "author": author, "text": text}
        message = {"id": edits or f"m{self.number}", "edited": bool(edits), "time": 1767225600}
        self.updates.append({**update, **message})
        self.changed.set()

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    async def _me(self, _request: web.Request) -> web.Response:
        return web.json_response({"id": BOT})

    async def _updates(self, request: web.Request) -> web.Response:
        if self.poll_cuts:
            self.poll_cuts -= 1
            return cut(request)
        after = int(request.query["after"])
        self.updates = [update for update in self.updates if update["number"] > after]
        if not self.updates:
            self.changed.clear()
            await asyncio.wait([waiter := asyncio.ensure_future(self.changed.wait())], timeout=5)
            waiter.cancel()
        if self.poll_cuts:
            self.poll_cuts -= 1
            return cut(request)
        return web.json_response(self.updates)

    async def _send(self, request: web.Request) -> web.Response:
        self.sends += 1
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, web.Response):
            return failure
        if failure == "cut before":
            return cut(request)
        if not self.is_member:
            return web.json_response({}, status=403)
        body = await request.json()
        self.messages.append(VisibleMessage(body["room"], body["thread"], body["text"]))
        return cut(request) if failure else web.json_response({"id": f"b{len(self.messages)}"})


def cut(request: web.Request) -> web.Response:
    """Close the connection without a response."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class LoftRig(ChannelRig):
    """One room of a simulated Loft."""

    secrets = (TOKEN,)
    unknown_sender = "not-the-token"

    def __init__(self, server: LoftServer, runner: web.AppRunner) -> None:
        self._server, self.stop = server, runner.cleanup

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return settings for the bot."""
        return {"url": self._server.url, "token": TOKEN, **others}

    async def say(self, text: str) -> None:
        """Send a message as the person."""
        self._server.push(text)

    async def say_in_thread(self, text: str) -> str:
        """Send a message in the thread `t1`."""
        self._server.push(text, thread="t1")
        return "t1"

    async def echo(self, text: str) -> None:
        """Deliver a message of the bot."""
        self._server.push(text, author=BOT)

    async def send_command(self, text: str) -> None:
        """Send a command as the person."""
        self._server.push(f"/{text}")

    async def edit_message(self, platform_id: str, text: str) -> None:
        """Change a message of the person."""
        self._server.push(text, edits=platform_id)

    def visible_messages(self) -> list[VisibleMessage]:
        """Return the bot's messages."""
        return self._server.messages

    def send_count(self) -> int:
        """Return how many sends have arrived."""
        return self._server.sends

    async def throttle(self, seconds: int) -> None:
        """Answer the next send with 429."""
        self._server.failures.append(web.Response(status=429, headers={"Retry-After": str(seconds)}))

    async def fail(self) -> None:
        """Answer the next send with 502."""
        self._server.failures.append(web.Response(status=502))

    async def revoke(self) -> None:
        """Replace the token."""
        self._server.token = "another"
        self._server.changed.set()

    async def kick(self) -> None:
        """Remove the bot from the room."""
        self._server.is_member = False

    async def refuse_markup(self) -> None:
        """Do nothing: Loft has no markup."""

    async def cut_receiving(self) -> None:
        """Break four polls."""
        self._server.poll_cuts = 4
        self._server.changed.set()

    async def cut_sending(self, *, carried_out: bool) -> None:
        """Break the next send."""
        self._server.failures.append("cut after" if carried_out else "cut before")
