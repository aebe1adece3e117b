"""MCP servers that are commands in a sandbox: started for one request, and ended after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delivery.database.engine import Database
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.tools.mcp.results import render_resource, to_tool_result
from gateway.tools.mcp.server import McpUnavailable
from gateway.tools.mcp.stdio_server import StdioMcpServer
from gateway.tools.tool import ToolContext
from mcp_agents import Agents
from migrated import migrated_sqlite
from sandbox.config import SandboxConfig
from sandbox.testing.processes import processes_with, unique_sleep_seconds
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context
from turn_worker import open_turn_worker

CAPABILITIES = '{"tools":{},"resources":{}}'
CHANGED = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
ABOUT = '{"name":"b","version":"1"}'

SERVER = r"""
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while read -r line; do
  id=$(sed 's/.*"id": *\("[^"]*"\).*/\1/' <<< "$line")
  case "$line" in
    *'"initialize"'*)
      answer '{"protocolVersion":"2025-06-18","capabilities":CAPABILITIES,"serverInfo":ABOUT}'
      initialized=no ;;
    *notifications/initialized*)
      initialized=yes
      if [ -n "$ANNOUNCES" ]; then echo 'CHANGED'; fi ;;
    *'"cursor":"'$$'\/second"'*)
      next="\"nextCursor\":\"$$ third\""
      answer "{$next,\"tools\":[{\"name\":\"wave\",\"inputSchema\":{\"type\":\"object\"}}]}" ;;
    *'"cursor":"'$$' third"'*)
      answer '{"tools":[{"name":"bow","inputSchema":{"type":"object"}}]}' ;;
    *'"cursor"'*)
      printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no such cursor"}}\n' "$id" ;;
    *'"tools/list"'*)
      schema='"inputSchema":{"type":"object","examples":[{"nextCursor":"in a schema"}]}'
      next=",\"nextCursor\" : \"$$\\/second\""
      answer "{\"tools\":[{\"name\":\"greet\",\"description\":\"Greet.\",$schema}]${PAGES:+$next}}" ;;
    *'"resources/read"'*) answer '{"contents":[{"uri":"a://b","text":"seeds"}]}' ;;
    *announce*)
      echo 'CHANGED'
      answer '{"content":[]}' ;;
    *crash*) echo 'no such bird' >&2; exit 3 ;;
    *garble*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":half}" ;;
    *talkative*)
      echo "received $line"
      echo "$line"
      echo "{\"level\":\"debug\",\"error\":null,\"message\":$line}"
      echo "{\"id\":$id,\"error\":\"none\",\"note\":\"}{ notifications/tools/list_changed\"}"
      echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"res"
      sleep 0.3
      answer '{"content":[{"type":"text","text":"said \"id\": [{ and done"}]}'
      echo "answered $line" ;;
    *curious*)
      for asked in ping elicitation/create; do
        echo "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"$asked\",\"params\":{\"message\":\"who?\"}}"
        read -r reply
      done
      answer "{\"content\":[{\"type\":\"text\",\"text\":\"${reply//\"/}\"}]}" ;;
    *flood*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"text":"' "$id"
      head -c 60000000 /dev/zero | tr '\0' x
      echo '"}}' ;;
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
    await sandbox.write(
        "server.sh",
        SERVER.replace("SLEEP", seconds)
        .replace("CAPABILITIES", CAPABILITIES)
        .replace("ABOUT", ABOUT)
        .replace("CHANGED", CHANGED)
        .encode(),
    )
    servers = {"command": "bash server.sh", "env": {"GREETING": 'it\'s "me"'.replace('"', "")}, **config}
    return StdioMcpServer(McpServerConfig.model_validate(servers)), seconds


async def test_a_command_is_started_for_each_request_and_leaves_nothing(tool_context: ToolContext) -> None:
    """Its tools are listed, a call gets the variables, and its processes are gone afterwards."""
    server, seconds = await _install(tool_context)
    (listed,) = (await server.describe(tool_context)).tools
    assert (listed.name, listed.description) == ("greet", "Greet.")
    result = to_tool_result(await server.call_tool(tool_context, "greet", {}), tool="greet", limit=1000)
    assert (result.ok, result.content) == (True, "it's me, initialized: yes")
    async with asyncio.timeout(60):
        while processes_with(seconds):  # noqa: ASYNC110 - other processes end
            await asyncio.sleep(0.05)


async def test_the_tools_of_all_pages_are_listed(tool_context: ToolContext) -> None:
    """A list is continued in the same process, because a cursor may mean nothing to another one."""
    server, _seconds = await _install(tool_context, env={"PAGES": "yes"})
    assert [one.name for one in (await server.describe(tool_context)).tools] == ["greet", "wave", "bow"]


async def test_what_a_command_logs_on_stdout_is_no_answer(tool_context: ToolContext) -> None:
    """Only a whole message with the request's id and a result counts, whatever else contains the id."""
    server, _seconds = await _install(tool_context)
    result = await server.call_tool(tool_context, "greet", {"mode": "talkative", "result": "none"})
    assert to_tool_result(result, tool="greet", limit=1000).content == 'said "id": [{ and done'
    assert not server.take_list_changed()


async def test_the_requests_of_a_command_are_answered(tool_context: ToolContext) -> None:
    """A request for input gets an error, so that the call does not wait for its timeout."""
    server, _seconds = await _install(tool_context, timeout=20)
    result = await server.call_tool(tool_context, "greet", {"mode": "curious"})
    content = to_tool_result(result, tool="greet", limit=1000).content
    assert content == "{jsonrpc:2.0,id:7,error:{code:-32601,message:Method not found}}"


async def test_a_command_reads_resources_and_announces_another_list(tool_context: ToolContext) -> None:
    """What it declares is known, a resource is read, and an announcement counts once."""
    server, _seconds = await _install(tool_context)
    offer = await server.describe(tool_context)
    assert (offer.resources, offer.prompts) == (True, False)
    read = await server.read(tool_context, "resources/read", {"uri": "a://b"})
    assert render_resource(read) == "seeds"
    assert not server.take_list_changed()
    await server.call_tool(tool_context, "announce", {})
    assert [server.take_list_changed(), server.take_list_changed()] == [True, False]


@pytest.mark.parametrize("announces", ["", "yes"])
async def test_an_announcement_at_each_start_is_ignored(
    tool_context: ToolContext, tmp_path: Path, announces: str
) -> None:
    """A call's result names another list only if the listing itself had no announcement."""
    await _install(tool_context)
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    harness = await open_turn_worker(database, tmp_path)
    agents = Agents(harness)
    agent = await agents.configure(birds={"command": "bash server.sh", "env": {"ANNOUNCES": announces}})
    context = replace(
        await harness.tool_context(await harness.add_turn(running=True)),
        agent=agent,
        environment=tool_context.environment,
        environment_resolver=tool_context.environment_resolver,
    )
    async with agents.mcp_tools.open(context) as external:
        called = await external.tools["birds_greet"].run(context, {"mode": "announce"}, "key")
    await database.close()
    assert called.ok
    assert ("list of tools changed" in called.content) is not bool(announces)


async def test_a_command_that_ends_or_is_missing_reports_its_error(tool_context: ToolContext) -> None:
    """The end of its stderr is the reason; one that had received the call may have run it."""
    server, _seconds = await _install(tool_context)
    with pytest.raises(McpUnavailable, match="answer: no such bird") as crashed:
        await server.call_tool(tool_context, "crash", {})
    assert crashed.value.may_have_run
    with pytest.raises(McpUnavailable, match="not JSON") as garbled:
        await server.call_tool(tool_context, "garble", {})
    assert garbled.value.may_have_run
    missing, _seconds = await _install(tool_context, command="no-such-server")
    with pytest.raises(McpUnavailable, match="no-such-server") as unsent:
        await missing.call_tool(tool_context, "greet", {})
    assert not unsent.value.may_have_run


async def test_a_command_that_answers_too_much_ends_at_once(tool_context: ToolContext) -> None:
    """The reason is the size of the answer, and not the time that reading it would take."""
    server, _seconds = await _install(tool_context, timeout=20)
    with pytest.raises(McpUnavailable, match="it wrote more than 4194304 bytes") as raised:
        await server.call_tool(tool_context, "flood", {})
    assert raised.value.may_have_run


async def test_a_sandbox_without_the_programs_of_the_exchange_is_named(tool_context: ToolContext) -> None:
    """Nothing was sent, and nothing waits for an answer that could not be read."""
    server, _seconds = await _install(tool_context, env={"PATH": "/nowhere"}, timeout=5)
    with pytest.raises(McpUnavailable, match="the sandbox has no awk head sed tail wc") as raised:
        await server.call_tool(tool_context, "greet", {})
    assert not raised.value.may_have_run


async def test_a_silent_command_ends_with_its_time(tool_context: ToolContext) -> None:
    """The result says that the call may have run, and no process is left."""
    server, seconds = await _install(tool_context, timeout=2)
    with pytest.raises(McpUnavailable, match="within 2 s") as raised:
        await server.call_tool(tool_context, "silence", {})
    assert raised.value.may_have_run
    async with asyncio.timeout(60):
        while processes_with(seconds):  # noqa: ASYNC110 - other processes end
            await asyncio.sleep(0.05)
