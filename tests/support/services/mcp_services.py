"""MCP servers on loopback, made with the official package, whose tools a test can change."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from aiohttp import web
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError


@dataclass(kw_only=True)
class McpService:
    """A running server: the calls it got, the headers of its requests, and its tools.

    `requires_sign_in`: it answers 401.
    """

    server: MCPServer
    url: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    requires_sign_in: bool = False


def build_service(url: str) -> McpService:
    """Return a server with the tools `add`, `fail`, `fill` and `wait`, resources and a prompt."""
    service = McpService(server=MCPServer("sums"), url=url)

    @service.server.tool()
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        service.calls.append(("add", {"a": a, "b": b}))
        return f"the sum is {a + b}"

    @service.server.tool()
    async def fail() -> str:
        """Fail."""
        raise ToolError("the pigeon is lost")

    @service.server.tool()
    async def fill(size: int) -> str:
        """Return much text."""
        return "x" * size

    @service.server.tool()
    async def wait() -> str:
        """Never return."""
        service.calls.append(("wait", {}))
        await asyncio.Event().wait()
        return ""

    @service.server.resource("notes://today", mime_type="text/plain")
    async def today() -> str:
        """The notes of today."""
        return "feed the pigeons"

    @service.server.resource("notes://{day}")
    async def of_day(day: str) -> bytes:
        """The notes of a day."""
        return f"notes of {day}".encode()

    @service.server.prompt()
    async def greet(name: str) -> str:
        """Greet a person."""
        return f"Say hello to {name}."

    return service


@asynccontextmanager
async def mcp_service(port: int = 0) -> AsyncIterator[McpService]:
    """Serve the tools over streamable HTTP until the block ends."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        address = listening.getsockname()
        service = build_service(f"http://127.0.0.1:{address[1]}/mcp")
        app = service.server.streamable_http_app()

        async def observed(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                service.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
                if service.requires_sign_in:
                    await send({"type": "http.response.start", "status": 401, "headers": []})
                    await send({"type": "http.response.body", "body": b""})
                    return
            await app(scope, receive, send)

        config = uvicorn.Config(observed, log_config=None, timeout_graceful_shutdown=1, lifespan="on")
        runner = uvicorn.Server(config)
        serving = asyncio.create_task(runner.serve(sockets=[listening]))
        try:
            yield service
        finally:
            runner.should_exit = True
            runner.force_exit = True
            await serving


@dataclass(kw_only=True)
class SessionService:
    """A server of an older version of the protocol, which keeps sessions and answers with JSON.

    `failure` is what answers a call in place of its result.
    """

    refusal: int
    failure: web.Response | None = None
    announces_list: bool = False
    url: str = ""
    sessions: set[str] = field(default_factory=set)
    calls: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a message of a known session; the status `refusal` for an unknown one."""
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        if message["method"] == "initialize":
            session = f"session-{secrets.token_hex(8)}"
            self.sessions.add(session)
            about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result = {**about, "serverInfo": {"name": "old", "version": "1"}}
            return _json_rpc(message, result, **{"Mcp-Session-Id": session})
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            return web.Response(status=self.refusal, text="no such session")
        if message["method"] == "tools/list":
            tool = {"name": "greet", "inputSchema": {"type": "object"}}
            return _json_rpc(message, {"tools": [tool]})
        if message["method"] == "tools/call":
            return await self._call(request, message)
        return web.Response(status=202)

    async def _call(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        self.calls += 1
        if self.failure is not None:
            return self.failure
        result = {"content": [{"type": "text", "text": "hello"}]}
        if self.announces_list:
            return await _stream(request, _CHANGED, _answer(message, result))
        return _json_rpc(message, result)


_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def _answer(message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _json_rpc(message: dict[str, Any], result: dict[str, Any], **headers: str) -> web.Response:
    return web.json_response(_answer(message, result), headers=headers)


async def _stream(request: web.Request, *messages: dict[str, Any]) -> web.StreamResponse:
    """Send messages as server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for message in messages:
        await response.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
    return response


@asynccontextmanager
async def session_service(refusal: int = 404) -> AsyncIterator[SessionService]:
    """Serve a server with sessions until the block ends."""
    service = SessionService(refusal=refusal)
    app = web.Application()
    app.router.add_route("*", "/mcp", service.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    yield service
    await runner.cleanup()
