"""An agent whose record names MCP servers, and its tools as a turn opens them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from egress.policy import EgressPolicy
from gateway.records.records import Records
from gateway.store.accounts.records import Record
from gateway.tools.executor import ToolExecutor
from gateway.tools.mcp.mcp_tools import McpTools
from turn_worker import TurnWorkerHarness

LOOPBACK = "127.0.0.0/8"


class Agents:
    """Changes the agent's record, and opens its tools as a turn does."""

    def __init__(self, harness: TurnWorkerHarness, *, allow: str = LOOPBACK, **options: Any) -> None:
        self.harness = harness
        self.records = Records(harness.vault, EgressPolicy.parse(allow))
        self.mcp_tools = McpTools(self.records, **options)

    async def configure(self, **servers: Any) -> Record:
        """Give the agent these MCP servers; their calls need no approval unless the test says so."""
        servers = {name: {"approval": "never", **server} for name, server in servers.items()}
        async with self.harness.database.begin() as connection:
            saved = await self.records.update(connection, self.harness.agent, patch={"mcp": servers})
        self.harness.agent = saved.record
        return saved.record

    @asynccontextmanager
    async def tools(self, turn: Any = None) -> AsyncIterator[ToolExecutor]:
        """Open the tools of an attempt at a turn."""
        async with self.harness.open_tools(self.mcp_tools.open, turn) as (tools, external):
            self.notes = external.notes
            yield tools
