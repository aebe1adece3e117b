"""The reference server of the MCP project, `@modelcontextprotocol/server-everything`, over HTTP.

Runs where Node is, and MCP_REFERENCE_MODULES names the node_modules folder that holds the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from delivery.database.engine import Database
from egress.policy import EgressPolicy
from gateway.records.records import Records
from gateway.tools.executor import ToolExecutor
from gateway.tools.mcp.mcp_tools import McpTools
from migrated import migrated_sqlite
from nats_servers import free_ports
from turn_worker import open_turn_worker

MODULES = os.environ.get("MCP_REFERENCE_MODULES", "")
PROGRAM = Path(MODULES, "@modelcontextprotocol/server-everything/dist/index.js")

pytestmark = pytest.mark.skipif(
    not MODULES or shutil.which("node") is None, reason="wants Node and MCP_REFERENCE_MODULES"
)


@pytest.fixture
async def server_url() -> AsyncIterator[str]:
    """Run the server on loopback."""
    (port,) = free_ports(1)
    child = await asyncio.create_subprocess_exec(
        shutil.which("node") or "node",
        str(PROGRAM),
        "streamableHttp",
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(60):
        while not await _listens(port):
            assert child.returncode is None
            await asyncio.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    child.kill()
    await child.wait()


async def _listens(port: int) -> bool:
    try:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def opened_tools(directory: Path, url: str) -> AsyncIterator[ToolExecutor]:
    """Open the tools of a turn whose agent has the server."""
    database = Database(await migrated_sqlite(directory / "gateway.db"))
    harness = await open_turn_worker(database, directory)
    records = Records(harness.vault, EgressPolicy.parse("127.0.0.0/8"))
    patch = {"mcp": {"all": {"url": url, "approval": "never"}}}
    async with database.begin() as connection:
        agent = (await records.update(connection, harness.agent, patch=patch)).record
    context = replace(await harness.tool_context(await harness.add_turn(running=True)), agent=agent)
    async with McpTools(records).open(context) as external:
        assert external.notes == ()
        yield ToolExecutor(
            context,
            begin=harness.transactions.begin,
            check=lambda: None,
            allowed=None,
            external=external.tools,
        )
    await database.close()


async def test_tools_resources_and_prompts_of_the_reference_server(tmp_path: Path, server_url: str) -> None:
    """A tool is called, a resource is read, and a prompt is filled in."""
    async with opened_tools(tmp_path, server_url) as tools:
        echoed = await tools.call("all_echo", {"message": "coo"}, call="call-1")
        listed = await tools.call("mcp_list_resources", {"server": "all"}, call="call-2")
        assert listed.ok, listed.content
        uri = json.loads(listed.content.splitlines()[0])["uri"]
        read = await tools.call("mcp_read_resource", {"server": "all", "uri": uri}, call="call-3")
        prompts = await tools.call("mcp_list_prompts", {"server": "all"}, call="call-4")
        filled = await tools.call("mcp_get_prompt", {"server": "all", "name": "simple-prompt"}, call="call-5")
    assert "coo" in echoed.content
    assert read.ok
    assert "simple-prompt" in prompts.content
    assert filled.content.startswith("user:\n")
