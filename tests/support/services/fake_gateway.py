"""Simulate a gateway on loopback, in a thread of its own: canned resources and a scripted WebSocket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

Script = Callable[["ClientSocket"], Awaitable[None]]


@dataclass(slots=True)
class ClientSocket:
    """One client's WebSocket, as a script sees it."""

    socket: web.WebSocketResponse
    seq: int = 0
    received: list[dict[str, Any]] = field(default_factory=list)

    async def receive(self, kind: str) -> dict[str, Any]:
        """Wait for a frame of this type."""
        while True:
            message = await self.socket.receive(timeout=10)
            assert message.type is WSMsgType.TEXT, f"the client closed instead of sending {kind}"
            frame: dict[str, Any] = json.loads(message.data)
            self.received.append(frame)
            if frame["type"] == kind:
                return frame

    async def send_control(self, kind: str, **fields: Any) -> None:
        """Send a control frame."""
        await self.socket.send_json({"type": kind, **fields})

    async def send_event(self, kind: str, turn: str = "trn_1", **about: Any) -> None:
        """Send an event of the conversation."""
        self.seq += 1
        await self.send_control(
            kind, v=1, seq=self.seq, conversation="cnv_1", turn=turn, data=about, time="t", n=self.seq
        )


@dataclass(slots=True)
class FakeGateway:
    """The responses of the simulated gateway, and the requests it got."""

    url: str = ""
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    responses: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    requests: list[tuple[str, str, Any, dict[str, str]]] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)
    sockets: list[ClientSocket] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request by what was prepared; 404 problem+json otherwise."""
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.path, body, dict(request.headers)))
        if request.path == "/ws":
            return await self._run_script(request)
        if request.method == "GET" and request.path in self.lists:
            return web.json_response(self._page(self.lists[request.path], request))
        missing = (404, {"title": "Not found", "detail": f"no {request.path}"})
        status, answer = self.responses.get((request.method, request.path), missing)
        if isinstance(answer, str):
            return web.Response(status=status, text=answer)
        kind = "application/json" if status < 400 else "application/problem+json"
        return web.json_response(answer, status=status, content_type=kind)

    def _page(self, items: list[dict[str, Any]], request: web.Request) -> dict[str, Any]:
        start = int(request.query.get("cursor", "0"))
        following = start + 2 if start + 2 < len(items) else None
        return {"items": items[start : start + 2], "next": following and str(following)}

    async def _run_script(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        talk = ClientSocket(socket)
        self.sockets.append(talk)
        await self.scripts.pop(0)(talk)
        await socket.close()
        return socket


@contextmanager
def fake_gateway() -> Iterator[FakeGateway]:
    """Run a simulated gateway until the block ends."""
    stand_in, ready, loop = FakeGateway(), threading.Event(), asyncio.new_event_loop()
    ending = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", stand_in.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await ending.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield stand_in
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
        loop.close()
