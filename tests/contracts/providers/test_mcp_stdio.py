"""MCP servers that are commands in a sandbox: started for one request, and ended after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.records.mcp_servers import McpServerConfig
from gateway.tools.external.mcp_results import to_tool_result
from gateway.tools.external.mcp_server import McpUnavailable
from gateway.tools.external.mcp_stdio import StdioMcpServer
from gateway.tools.tool import ToolContext
from sandbox.config import SandboxConfig
from sandbox.testing.processes import processes_with, unique_sleep_seconds
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context

SERVER = r"""
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while read -r line; do
  id=$(sed 's/.*"id": *\("[^"]*"\).*/\1/' <<< "$line")
  case "$line" in
    *'"initialize"'*)
      answer '{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"b","version":"1"}}'
      initialized=no ;;
    *notifications/initialized*) initialized=yes ;;
    *'"tools/list"'*)
      answer '{"tools":[{"name":"greet","description":"Greet.","inputSchema":{"type":"object"}}]}' ;;
    *crash*) echo 'no such bird' >&2; exit 3 ;;
    *silence*) sleep SLEEP ;;
    *'"tools/call"'*)
      echo 'a line that is no message'
      answer "{\"content\":[{\"type\":\"text\",\"text\":\"$GREETING, initialized: $initialized\"}]}" ;;
  esac
done
sleep SLEEP
"""


@pytest.fixture(params=["host-rlimits"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return a provider, closed."""
    return all_rigs()[request.param](tmp_path)


@pytest.fixture
async def tool_context(rig: ProviderRig) -> AsyncIterator[ToolContext]:
    """Return a tool context with a sandbox."""
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        yield make_tool_context(SandboxConfig(provider=rig.plugin.name, persistent=True), sandbox, rig)
        await provider.destroy(sandbox.id)


async def _install(context: ToolContext, **config: Any) -> tuple[StdioMcpServer, str]:
    """Write the server into the workspace; returns it, and the seconds that its leftovers would sleep."""
    sandbox = await context.environment_resolver.sandbox(context.environment)
    seconds = unique_sleep_seconds()
    await sandbox.write("server.sh", SERVER.replace("SLEEP", seconds).encode())
    servers = {"command": "bash server.sh", "env": {"GREETING": 'it\'s "me"'.replace('"', "")}, **config}
    return StdioMcpServer(McpServerConfig.model_validate(servers)), seconds


async def test_a_command_is_started_for_each_request_and_leaves_nothing(tool_context: ToolContext) -> None:
    """Its tools are listed, a call gets the variables, and its processes are gone afterwards."""
    server, seconds = await _install(tool_context)
    (listed,) = await server.list_tools(tool_context)
    assert (listed.name, listed.description) == ("greet", "Greet.")
    result = to_tool_result(await server.call_tool(tool_context, "greet", {}), limit=1000)
    assert (result.ok, result.content) == (True, "it's me, initialized: yes")
    async with asyncio.timeout(60):
        while processes_with(seconds):  # noqa: ASYNC110 - other processes end
            await asyncio.sleep(0.05)


async def test_a_command_that_ends_or_is_missing_reports_its_error(tool_context: ToolContext) -> None:
    """The end of its stderr is the reason."""
    server, _seconds = await _install(tool_context)
    with pytest.raises(McpUnavailable, match="no such bird"):
        await server.call_tool(tool_context, "crash", {})
    missing, _seconds = await _install(tool_context, command="no-such-server")
    with pytest.raises(McpUnavailable, match="no-such-server"):
        await missing.list_tools(tool_context)


async def test_a_silent_command_ends_with_its_time(tool_context: ToolContext) -> None:
    """The result says that the call may have run, and no process is left."""
    server, seconds = await _install(tool_context, timeout=2)
    with pytest.raises(McpUnavailable, match="within 2 s") as raised:
        await server.call_tool(tool_context, "silence", {})
    assert raised.value.may_have_run
    async with asyncio.timeout(60):
        while processes_with(seconds):  # noqa: ASYNC110 - other processes end
            await asyncio.sleep(0.05)
