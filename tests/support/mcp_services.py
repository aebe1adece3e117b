"""MCP servers on loopback, made with the official package, whose tools a test can change."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError


@dataclass(kw_only=True)
class McpService:
    """A running server: the calls it got, the headers of its requests, and its tools."""

    server: MCPServer
    url: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def build_service(url: str) -> McpService:
    """Return a server with the tools `add`, `fail`, `fill` and `wait`."""
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
