"""A sandbox with a browser or a desktop, and the pages that its tests open."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gateway.agents.port import ToolResult
from gateway.files.collection import FileRejected
from gateway.tools.tool import Tool, ToolContext, validate_arguments
from sandbox.config import SandboxConfig
from sandbox.port import Sandbox
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context

VARIANTS = ["host-control_groups"]
if os.environ.get("DOVECOTE_TEST_IMAGE"):
    VARIANTS.append("docker-engine")


@dataclass
class SentFiles:
    """Receives what tools send to people."""

    paths: list[str] = field(default_factory=list)
    most: int = 100

    async def deliver(self, _turn: Any, _environment: Any, path: str, *, caption: str, key: str) -> Any:
        """Keep the path; too many files are refused."""
        assert key
        if len(self.paths) >= self.most:
            raise FileRejected("too many files")
        self.paths.append(path)
        return SimpleNamespace(caption=caption)


@dataclass
class Screen:
    """A sandbox and the tools that use its screen."""

    name: str
    context: ToolContext
    sandbox: Sandbox
    sent: SentFiles
    pages: Path
    pages_url: str
    """The URL, inside the sandbox, of the workspace."""
    calls: int = 0

    async def run(self, tool: Tool, **args: Any) -> ToolResult:
        """Carry a call out, as the executor would."""
        self.calls += 1
        validate_arguments(tool.spec(self.context).schema, args)
        return await tool.run(self.context, args, f"key_{self.calls:08}")

    async def run_within(self, seconds: int, tool: Tool, **args: Any) -> ToolResult:
        """Carry a call out with another time-out of the record."""
        before = self.context
        config = before.environment.config.model_copy(update={"timeout": seconds})
        self.context = replace(before, environment=replace(before.environment, config=config))
        try:
            return await self.run(tool, **args)
        finally:
            self.context = before

    def write_page(self, name: str, content: str) -> str:
        """Write a page into the workspace and return its URL."""
        (self.pages / name).write_text(content)
        return f"{self.pages_url}/{name}"


@asynccontextmanager
async def open_screen(variant: str, directory: Path, *, runtime: str) -> AsyncIterator[Screen]:
    """Open a reserved sandbox with a workspace."""
    rig = all_rigs()[variant](directory)
    rig.workspace.mkdir()
    config = SandboxConfig.model_validate(
        {"provider": rig.plugin.name, "persistent": True, "runtimes": ["bash", runtime], "memoryLimit": 1024}
    )
    async with rig.open() as provider:
        spec = rig.spec(persistent=True, memory_mb=1024, pids=1024)
        sandbox = await provider.create(spec)
        sent = SentFiles()
        context = make_tool_context(config, sandbox, rig)
        owner = replace(context.environment.owner, workspace="wsp_1")
        environment = replace(context.environment, spec=spec, owner=owner)
        try:
            yield Screen(
                name=variant,
                context=replace(context, environment=environment, files=cast("Any", sent)),
                sandbox=sandbox,
                sent=sent,
                pages=rig.workspace,
                pages_url=f"file://{spec.mount if rig.isolated else rig.workspace}",
            )
        finally:
            await provider.destroy(sandbox.id)


@dataclass
class PageServer:
    """Pages on loopback, and what was posted to them."""

    url: str
    posted: list[str]


@contextmanager
def serve_pages(pages: dict[str, str]) -> Iterator[PageServer]:
    """Serve pages; `/silent` never answers, `/endless` answers and never ends."""
    stop = threading.Event()
    posted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """Answers from the table."""

        def do_GET(self) -> None:
            """Answer with a page."""
            if self.path == "/silent":
                stop.wait(120)
                return
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(pages.get(self.path, "").encode())
            self.wfile.flush()
            if self.path == "/endless":
                stop.wait(120)

        def do_POST(self) -> None:
            """Keep the form and thank for it."""
            posted.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>Thanks</title><h1>Thank you</h1>")

        def log_message(self, *_args: Any) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield PageServer(url=f"http://127.0.0.1:{server.server_port}", posted=posted)
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join()
