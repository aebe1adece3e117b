"""The tools of MCP servers in a turn: offered, called, bounded and recorded as built-in tools are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from delivery.database.engine import Database
from gateway.agents.port import PendingToolCall
from gateway.records.errors import InvalidRecord
from gateway.store.turns import turn_steps
from gateway.tools.mcp.mcp_tools import REST_SECONDS
from gateway.tools.mcp.reads import READ_TOOLS
from mcp_agents import Agents
from mcp_services import McpService, mcp_service, session_service
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker

SECRET = "a-canary-of-a-bearer-token"
LOOPBACK = "127.0.0.0/8"
ENDLESS, MANY = "data: " + "x" * 5_000_000, "[" + "1," * 100_000 + "1]"


@pytest.fixture
async def service() -> AsyncIterator[McpService]:
    """A server of the official package on loopback."""
    async with mcp_service() as running:
        yield running


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


async def test_tools_are_offered_with_prefix_and_filter(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """The filter selects by name or by a beginning; the prefix is the server's name unless one is given."""
    agents = Agents(harness)
    await agents.configure(
        sums={"url": service.url, "tools": ["add", "fi*"]}, plain={"url": service.url, "prefix": ""}
    )
    async with agents.tools() as tools:
        offered = {spec.name: spec for spec in tools.list()}
    found = {name for name in offered if name.startswith("sums_")}
    assert found == {"sums_add", "sums_fill"}
    assert {"add", "fail", "fill", "wait"} <= set(offered)
    assert offered["sums_add"].description == "Add two numbers."
    assert set(offered["sums_add"].schema["properties"]) == {"a", "b"}


async def test_a_call_is_checkpointed_and_sends_the_headers(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """The step has the result; a repeat after a crash returns it and does not reach the server."""
    agents = Agents(harness)
    await agents.configure(sums={"url": service.url, "headers": {"Authorization": f"Bearer {SECRET}"}})
    turn = await harness.add_turn(running=True)
    async with agents.tools(turn) as tools:
        result = await tools.call("sums_add", {"a": 2, "b": 3}, call="call-1")
    assert (result.ok, result.content) == (True, "the sum is 5")
    async with agents.tools(replace(turn, attempt=2)) as tools:
        again = await tools.call("sums_add", {"a": 2, "b": 3}, call="call-1")
    assert again == result
    assert service.calls == [("add", {"a": 2, "b": 3})]
    assert {one.get("authorization") for one in service.headers} == {f"Bearer {SECRET}"}
    async with harness.database.read() as connection:
        steps = await turn_steps.list_for_turn(connection, turn.id)
    assert [(step.tool, step.state) for step in steps] == [("sums_add", "done")]


async def test_an_interrupted_call_is_reported_and_not_repeated(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """A call without a recorded result may have run; the server does not get it again."""
    agents = Agents(harness)
    await agents.configure(sums={"url": service.url})
    turn = await harness.add_turn(running=True)
    async with harness.database.begin() as connection:
        await turn_steps.begin(connection, turn.id, "call-1", tool="sums_add", args={"a": 1, "b": 1})
    async with agents.tools(replace(turn, attempt=2)) as tools:
        result = await tools.call("sums_add", {"a": 1, "b": 1}, call="call-1")
    assert not result.ok
    assert "may have run" in result.content
    assert service.calls == []


@pytest.mark.parametrize(
    ("mode", "approval", "asked"),
    [
        ("ask", "default", True),
        ("bypass", "default", False),
        ("bypass", "always", True),
        ("ask", "never", False),
    ],
)
async def test_approvals_follow_the_sandbox_unless_the_server_has_a_rule(
    harness: TurnWorkerHarness, service: McpService, mode: str, approval: str, *, asked: bool
) -> None:
    """A call that needs an approval does not run without one."""
    agents = Agents(harness)
    sandbox = await add_sandbox_record(harness.database, harness.agent.account, permissionMode=mode)
    record = await agents.configure(sums={"url": service.url, "approval": approval})
    harness.agent = replace(record, config={**record.config, "sandbox": sandbox.id})
    async with agents.tools() as tools:
        assert await tools.needs_approval("sums_add", {"a": 1, "b": 2}, call="call-1") is asked
        assert not await tools.needs_approval("sums_add", {"a": 1}, call="call-2")
        call = PendingToolCall(id="call-1", name="sums_add", args={"a": 1, "b": 2})
        assert tools.call_address(call) == service.url
        result = await tools.call("sums_add", {"a": 1, "b": 2}, call="call-1")
    assert result.ok is not asked
    assert bool(service.calls) is not asked


async def test_failures_and_long_answers_are_results(harness: TurnWorkerHarness, service: McpService) -> None:
    """A tool's error, a text beyond the output limit, and an answer beyond the size limit."""
    agents = Agents(harness)
    await agents.configure(sums={"url": service.url, "timeout": 20})
    async with agents.tools() as tools:
        failed = await tools.call("sums_fail", {}, call="call-1")
        long = await tools.call("sums_fill", {"size": 300_000}, call="call-2")
        endless = await tools.call("sums_fill", {"size": 5_000_000}, call="call-3")
        after = await tools.call("sums_add", {"a": 1, "b": 1}, call="call-4")
    assert not failed.ok
    assert "the pigeon is lost" in failed.content
    assert long.content.endswith("[output truncated]")
    assert len(long.content) < 100_000
    assert not endless.ok
    assert len(endless.content) < 1000
    assert after.content == "the sum is 2"


async def test_a_call_without_an_answer_ends_with_its_time(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """The result says that the call may have run."""
    agents = Agents(harness)
    await agents.configure(sums={"url": service.url, "timeout": 1})
    async with agents.tools() as tools:
        result = await tools.call("sums_wait", {}, call="call-1")
    assert not result.ok
    assert "within 1 s" in result.content
    assert "may have run" in result.content
    assert service.calls == [("wait", {})]


@pytest.mark.parametrize(
    ("failure", "unclear", "said"),
    [
        (web.Response(status=502, text="a proxy"), True, "status 502"),
        (web.Response(status=202), True, ""),
        (web.Response(text="{half", content_type="application/json"), True, ""),
        (web.Response(text="<html>", content_type="text/html"), True, ""),
        (web.Response(text="data: {half\n\n", content_type="text/event-stream"), True, ""),
        (web.Response(text=ENDLESS, content_type="text/event-stream"), True, "longer than 4194304 bytes"),
        (web.Response(text=MANY, content_type="application/json"), True, "100000 JSON values"),
        (web.Response(status=403), False, "status 403"),
        (web.Response(status=429), False, "status 429"),
    ],
)
async def test_a_call_whose_answer_is_lost_may_have_run(
    harness: TurnWorkerHarness, failure: web.Response, unclear: bool, said: str
) -> None:
    """Only a server that refuses the request says that nothing was done; the reason is named."""
    agents = Agents(harness)
    async with session_service() as service:
        service.failure = failure
        await agents.configure(old={"url": service.url, "timeout": 5})
        async with agents.tools() as tools:
            result = await tools.call("old_greet", {}, call="call-1")
    assert (result.ok, service.calls) == (False, 1)
    assert ("may have run" in result.content) is unclear
    assert said in result.content


async def test_a_restarted_server_and_a_changed_list_are_used(harness: TurnWorkerHarness) -> None:
    """A session that the restart ended is opened again; the next turn has the new list."""
    agents = Agents(harness)
    async with mcp_service() as first:
        await agents.configure(sums={"url": first.url})
        async with agents.tools() as tools:
            assert (await tools.call("sums_add", {"a": 1, "b": 1}, call="call-1")).ok
            port = int(first.url.split(":")[2].split("/")[0])
            first.server.remove_tool("fail")
    async with agents.tools() as tools:
        assert "sums_fail" in {spec.name for spec in tools.list()}
        gone = await tools.call("sums_add", {"a": 1, "b": 1}, call="call-1")
        assert not gone.ok
        async with mcp_service(port) as second:
            second.server.remove_tool("fail")
            assert (await tools.call("sums_add", {"a": 1, "b": 1}, call="call-2")).ok
            async with agents.tools() as later:
                assert "sums_fail" not in {spec.name for spec in later.list()}


async def test_resources_are_listed_and_read(harness: TurnWorkerHarness, service: McpService) -> None:
    """One tool lists resources and their templates, another reads one; a wrong address is a failure."""
    agents = Agents(harness)
    await agents.configure(notes={"url": service.url})
    async with agents.tools() as tools:
        listed = await tools.call("mcp_list_resources", {"server": "notes"}, call="call-1")
        patterns = await tools.call(
            "mcp_list_resources", {"server": "notes", "templates": True}, call="call-2"
        )
        read = await tools.call(
            "mcp_read_resource", {"server": "notes", "uri": "notes://today"}, call="call-3"
        )
        bytes_read = await tools.call(
            "mcp_read_resource", {"server": "notes", "uri": "notes://sunday"}, call="call-4"
        )
        missing = await tools.call(
            "mcp_read_resource", {"server": "notes", "uri": "no://such"}, call="call-5"
        )
        unknown = await tools.call(
            "mcp_read_resource", {"server": "birds", "uri": "notes://today"}, call="c-6"
        )
    assert json.loads(listed.content)["uri"] == "notes://today"
    assert json.loads(patterns.content)["uriTemplate"] == "notes://{day}"
    assert (read.ok, read.content) == (True, "feed the pigeons")
    assert "not shown" in bytes_read.content
    assert not missing.ok
    assert not unknown.ok
    assert "server must be one of notes" in unknown.content


async def test_prompts_are_listed_and_filled_in(harness: TurnWorkerHarness, service: McpService) -> None:
    """The list names the arguments; the prompt comes back with them."""
    agents = Agents(harness)
    await agents.configure(notes={"url": service.url})
    async with agents.tools() as tools:
        listed = await tools.call("mcp_list_prompts", {"server": "notes"}, call="call-1")
        filled = await tools.call(
            "mcp_get_prompt",
            {"server": "notes", "name": "greet", "arguments": {"name": "Ada"}},
            call="call-2",
        )
        wrong = await tools.call(
            "mcp_get_prompt", {"server": "notes", "name": "greet", "arguments": {"name": 1}}, call="call-3"
        )
    prompt = json.loads(listed.content)
    assert (prompt["name"], prompt["arguments"][0]["name"]) == ("greet", "name")
    assert (filled.ok, filled.content) == (True, "user:\nSay hello to Ada.")
    assert not wrong.ok
    assert "must be a text" in wrong.content


async def test_a_server_can_be_kept_to_its_tools(harness: TurnWorkerHarness, service: McpService) -> None:
    """`resources` and `prompts` false leave their tools out, one server at a time."""
    agents = Agents(harness)
    closed = {"url": service.url, "resources": False, "prompts": False}
    await agents.configure(closed=closed)
    async with agents.tools() as tools:
        assert not {spec.name for spec in tools.list()} & set(READ_TOOLS)
    await agents.configure(closed=closed, open={"url": service.url})
    async with agents.tools() as tools:
        specs = {spec.name: spec for spec in tools.list()}
    assert set(READ_TOOLS) <= set(specs)
    assert specs["mcp_read_resource"].schema["properties"]["server"]["enum"] == ["open"]


@pytest.mark.parametrize(("mode", "approval", "asked"), [("bypass", "always", True), ("ask", "never", False)])
async def test_reads_follow_the_approval_rule_of_their_server(
    harness: TurnWorkerHarness, service: McpService, mode: str, approval: str, *, asked: bool
) -> None:
    """A read is asked about as a call of the server's tools is, with its address."""
    agents = Agents(harness)
    sandbox = await add_sandbox_record(harness.database, harness.agent.account, permissionMode=mode)
    record = await agents.configure(notes={"url": service.url, "approval": approval})
    harness.agent = replace(record, config={**record.config, "sandbox": sandbox.id})
    args = {"server": "notes", "uri": "notes://today"}
    async with agents.tools() as tools:
        assert await tools.needs_approval("mcp_read_resource", args, call="call-1") is asked
        call = PendingToolCall(id="call-1", name="mcp_read_resource", args=args)
        assert tools.call_address(call) == service.url


async def test_an_announced_list_is_named_in_the_result(harness: TurnWorkerHarness) -> None:
    """The model learns that the server has other tools now; the next call without news has no note."""
    agents = Agents(harness)
    async with session_service() as service:
        await agents.configure(old={"url": service.url})
        async with agents.tools() as tools:
            assert (await tools.call("old_greet", {}, call="call-1")).content == "hello"
            service.announces_list = True
            reported = await tools.call("old_greet", {}, call="call-2")
    assert reported.ok
    assert "list of tools changed" in reported.content


@pytest.mark.parametrize("refusal", [400, 404])
async def test_a_call_of_an_expired_session_is_sent_once_more(
    harness: TurnWorkerHarness, refusal: int
) -> None:
    """The server refused the call, so it did not run; a new session gets it once."""
    agents = Agents(harness)
    async with session_service(refusal) as service:
        await agents.configure(old={"url": service.url})
        async with agents.tools() as tools:
            assert (await tools.call("old_greet", {}, call="call-1")).content == "hello"
            service.sessions.clear()
            assert (await tools.call("old_greet", {}, call="call-2")).content == "hello"
        assert service.calls == 2


async def test_a_server_that_cannot_be_reached_is_named_to_the_model(harness: TurnWorkerHarness) -> None:
    """Without an earlier list, the model gets the names of the missing tools; the others are offered."""
    agents = Agents(harness)
    await agents.configure(sums={"url": "http://127.0.0.1:9/mcp"})
    async with agents.tools() as tools:
        assert "bash" in {spec.name for spec in tools.list()}
    assert len(agents.notes) == 1
    assert "MCP server sums" in agents.notes[0]


async def test_a_server_that_fails_slowly_does_not_delay_every_turn(harness: TurnWorkerHarness) -> None:
    """For a minute its last list is offered without a request, or the reason why there is none."""
    now = [0.0]
    agents = Agents(harness, clock=lambda: now[0], slow_seconds=0.0)
    async with mcp_service() as service:
        await agents.configure(sums={"url": service.url})
        async with agents.tools() as tools:
            listed = {spec.name for spec in tools.list()}
    await agents.configure(sums={"url": service.url}, away={"url": "http://127.0.0.1:9/mcp"})
    rests: list[bool] = []
    for seconds in (0.0, 0.0, REST_SECONDS):
        now[0] += seconds
        async with agents.tools() as tools:
            assert {spec.name for spec in tools.list()} == listed
        rests.append("asks it again within a minute" in agents.notes[0])
    assert rests == [False, True, False]


async def test_a_private_address_is_refused_when_it_is_saved_and_when_it_is_used(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """An account cannot reach the gateway's network, whatever was allowed when the record was made."""
    with pytest.raises(InvalidRecord, match="/config/mcp/sums/url"):
        await Agents(harness, allow="").configure(sums={"url": service.url})
    await Agents(harness).configure(sums={"url": service.url})
    now = Agents(harness, allow="")
    async with now.tools() as tools:
        assert "sums_add" not in {spec.name for spec in tools.list()}
    assert "private" in now.notes[0] or "allowed" in now.notes[0]
    assert service.headers == []


async def test_a_server_of_the_operators_file_may_have_any_address(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """The configuration file belongs to the operator, whose own network it may name."""
    record = await Agents(harness).configure(sums={"url": service.url})
    harness.agent = replace(record, managed=True)
    async with Agents(harness, allow="").tools() as tools:
        assert (await tools.call("sums_add", {"a": 1, "b": 1}, call="call-1")).content == "the sum is 2"


async def test_secrets_are_masked_and_encrypted(harness: TurnWorkerHarness) -> None:
    """The record has a mask; a patch that contains the mask keeps the secret."""
    agents = Agents(harness)
    record = await agents.configure(
        sums={"url": "https://mcp.example.org/mcp", "headers": {"Authorization": SECRET}},
        local={"command": "server", "env": {"TOKEN": SECRET}},
    )
    assert record.config["mcp"]["sums"]["headers"] == {"Authorization": "***"}
    assert record.config["mcp"]["local"]["env"] == {"TOKEN": "***"}
    assert SECRET not in f"{record.config}{record.encrypted_secrets}"
    kept = await agents.configure(sums={"headers": {"Authorization": "***"}, "timeout": 5})
    servers = agents.records.mcp_servers(kept)
    assert servers["sums"].headers["Authorization"].get_secret_value() == SECRET
    assert servers["local"].env["TOKEN"].get_secret_value() == SECRET


@pytest.mark.parametrize(
    "server",
    [
        {},
        {"url": "https://mcp.example.org", "command": "server"},
        {"url": "https://mcp.example.org", "env": {"A": "b"}},
        {"command": "server", "headers": {"A": "b"}},
        {"url": "https://mcp.example.org", "headers": {"Host": "b"}},
        {"url": "https://mcp.example.org", "headers": {"A": "b\r\nC: d"}},
        {"command": "server", "env": {"LD_PRELOAD": "x.so"}},
        {"url": "https://mcp.example.org", "timeout": 601},
        {"url": "ftp://mcp.example.org"},
    ],
)
async def test_a_wrong_server_is_refused(harness: TurnWorkerHarness, server: dict[str, Any]) -> None:
    """The error names the server."""
    with pytest.raises(InvalidRecord, match="/mcp/sums"):
        await Agents(harness).configure(sums=server)
