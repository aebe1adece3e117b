"""The gateway between two sides of MCP: clients that ask its agents, and servers whose tools these use."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from api_server import ApiClient
from gateway_process import GatewayProcess, gateway
from mcp_services import McpService, mcp_service
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"


def model(body: dict[str, Any]) -> ScriptedTurn:
    """Call the server's tool for a sum, and repeat its result; repeat any other text."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return ScriptedTurn(text=f"the tool said: {last['content']}")
    if "sum" in last_text(body):
        return ScriptedTurn(calls=[ToolCall(name="sums_add", args={"a": 40, "b": 2})])
    return ScriptedTurn(text=f"echo: {last_text(body)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpGateway:
    """A gateway whose default agent has an MCP server, and an API client of its account."""

    process: GatewayProcess
    mine: ApiClient
    service: McpService

    @asynccontextmanager
    async def client(self, key: str | None = None) -> AsyncIterator[Client]:
        """Connect the official client with a key."""
        headers = {"Authorization": f"Bearer {self.mine.key if key is None else key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(f"{self.process.url}/mcp", http_client=http)
            async with Client(transport, cache=None) as client:
                yield client

    async def new_key(self, *scopes: str) -> str:
        """Return a further key of the account."""
        made = await self.mine.call("POST", "/accounts/me/keys", {"name": "k", "scopes": list(scopes)})
        return str(made.body["key"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mcp_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpGateway]:
    """Run a gateway with a loopback model and an MCP server."""
    async with OpenAIServer(model) as server, mcp_service() as service:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": server.base_url,
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
            "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
        }
        data = tmp_path_factory.mktemp("mcp") / "data"
        async with gateway(data, env=env) as process, process.http() as session:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            config = {"mcp": {"sums": {"url": service.url}}}
            changed = await mine.call("PATCH", "/accounts/me/agents/default", {"config": config})
            assert changed.status == 200, changed.body
            yield McpGateway(process=process, mine=mine, service=service)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _call(client: Client, tool: str, **args: Any) -> dict[str, Any]:
    """Call a tool and return its structured result."""
    result = await client.call_tool(tool, args)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def test_a_client_asks_an_agent_whose_tool_needs_an_approval(mcp_gateway: McpGateway) -> None:
    """The question is asked about the whole call; approved over MCP, the server's tool runs once."""
    async with mcp_gateway.client() as client:
        assert client.server_info is not None
        assert client.server_info.version == version("dovecote")
        asked = await _call(client, "ask", text="the sum please", conversation="sums")
        assert (asked["state"], len(asked["approvals"])) == ("waiting", 1)
        assert mcp_gateway.service.calls == []
        (question,) = (await mcp_gateway.mine.call("GET", "/approvals?state=pending")).body["items"]
        assert (question["tool"], question["args"]) == ("sums_add", {"a": 40, "b": 2})
        assert '"a": 40' in question["question"]
        assert "the sum is" not in question["question"]
        await _call(client, "approve", approval=asked["approvals"][0], decision="approve")
        reported = await _call(client, "ask", text="and then", conversation="sums")
        assert (reported["state"], reported["output"]) == ("completed", "echo: and then")
        first = await _call(client, "job_status", id=asked["turnId"])
        assert (first["state"], first["output"]) == ("completed", "the tool said: the sum is 42")
        found = await _call(client, "search", query="SUM IS")
        assert [one["conversation"] for one in found["items"]] == [asked["conversationId"]]
    assert mcp_gateway.service.calls == [("add", {"a": 40, "b": 2})]


async def test_a_key_gets_the_tools_of_its_scopes(mcp_gateway: McpGateway) -> None:
    """A tool without its scope is neither listed nor callable."""
    async with mcp_gateway.client() as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"ask", "send", "job_status", "job_logs", "approve", "search"}
    async with mcp_gateway.client(await mcp_gateway.new_key("read")) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"job_status", "job_logs", "search"}
        for name in ("ask", "send", "approve"):
            with pytest.raises(MCPError, match="no tool"):
                await client.call_tool(name, {"text": "hello", "conversation": "c"})


async def test_ids_of_another_account_do_not_exist(mcp_gateway: McpGateway) -> None:
    """A turn, a conversation and an approval of another account are not found, nor by a search."""
    operator = ApiClient(session=mcp_gateway.mine.session, url=mcp_gateway.process.url, key=ADMIN_KEY)
    other = (await operator.call("POST", "/accounts", {"name": "other"})).body["key"]
    async with mcp_gateway.client() as client:
        asked = await _call(client, "ask", text="the sum of secrets", conversation="private")
    theirs = {
        "job_status": {"id": asked["turnId"]},
        "job_logs": {"resultId": "job_unknown"},
        "send": {"conversation": asked["conversationId"], "text": "hello"},
        "approve": {"approval": asked["approvals"][0], "decision": "approve"},
    }
    async with mcp_gateway.client(other) as client:
        for name, args in theirs.items():
            result = await client.call_tool(name, args)
            assert result.is_error, name
            assert "404" in json.dumps(result.model_dump(mode="json")["content"]), name
        assert (await _call(client, "search", query="secrets"))["items"] == []


async def test_wrong_arguments_are_results_that_name_the_field(mcp_gateway: McpGateway) -> None:
    """The model that called can correct them."""
    async with mcp_gateway.client() as client:
        result = await client.call_tool("approve", {"approval": "apr_1", "decision": "perhaps"})
    assert result.is_error
    assert "/decision" in json.dumps(result.model_dump(mode="json")["content"])


async def test_text_that_cannot_be_stored_is_replaced(mcp_gateway: McpGateway) -> None:
    """A model writes such characters now and then, and a refusal is an error of the transport."""
    arguments = {"text": "half \ud83d of a pair, and NUL \0", "wait": 60}
    call = {"method": "tools/call", "params": {"name": "ask", "arguments": arguments}}
    answer = await mcp_gateway.mine.call("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, **call})
    assert answer.body["result"]["structuredContent"]["output"] == (
        "echo: half \N{REPLACEMENT CHARACTER} of a pair, and NUL \N{REPLACEMENT CHARACTER}"
    )


async def test_a_request_whose_id_is_null_is_refused(mcp_gateway: McpGateway) -> None:
    """It is no notification, and its client would wait for an answer; an error without an id is accepted."""
    mine, listing = mcp_gateway.mine, {"jsonrpc": "2.0", "id": None, "method": "tools/list"}
    refused = await mine.call("POST", "/mcp", listing)
    assert (refused.status, refused.body["error"]["code"]) == (422, -32600)
    assert refused.body["errors"][0]["pointer"] == "/id"
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no JSON"}}
    assert (await mine.call("POST", "/mcp", error)).status == 202


async def test_other_methods_and_keys_are_refused(mcp_gateway: McpGateway) -> None:
    """There is no stream to GET, no session to DELETE, and nothing without a key."""
    mine = mcp_gateway.mine
    assert (await mine.call("GET", "/mcp")).status == 405
    assert (await mine.call("DELETE", "/mcp")).status == 405
    anonymous = ApiClient(session=mine.session, url=mine.url, key="no-key")
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert (await anonymous.call("POST", "/mcp", message)).status == 401
    assert (await mine.call("POST", "/mcp", message, Origin="https://evil.example.org")).status == 403
    unknown = await mine.call("POST", "/mcp", {**message, "method": "tools/burn"})
    assert unknown.body["error"]["code"] == -32601
    accepted = await mine.call("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert accepted.status == 202


async def test_a_version_that_is_not_supported_is_refused(mcp_gateway: McpGateway) -> None:
    """The header is required after `initialize`; clients of early versions send none."""
    mine, ping = mcp_gateway.mine, {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    known = await mine.call("POST", "/mcp", ping, **{"MCP-Protocol-Version": "2025-11-25"})
    unknown = await mine.call("POST", "/mcp", ping, **{"MCP-Protocol-Version": "1999-01-01"})
    assert (known.status, unknown.status) == (200, 400)
    assert "use one of 2025-11-25" in unknown.body["detail"]


@pytest.mark.parametrize("path", ["/mcp", "/a2a"])
async def test_what_is_no_request_has_an_error_of_json_rpc(mcp_gateway: McpGateway, path: str) -> None:
    """A client of JSON-RPC reads the reason in `error`, any other in the problem document."""
    mine = mcp_gateway.mine
    headers = {"Authorization": f"Bearer {mine.key}", "Content-Type": "application/json"}
    for body, status, code in ((b"{", 400, -32700), (b"{}", 422, -32600), (b"[]", 422, -32600)):
        async with mine.session.post(f"{mine.url}{path}", data=body, headers=headers) as response:
            problem = await response.json()
            assert (response.status, problem["status"]) == (status, status)
        error = problem["error"]
        assert (problem["jsonrpc"], problem["id"], error["code"]) == ("2.0", None, code)
        assert error["message"].startswith(problem["detail"])


async def test_prompts_are_commands_that_help_lists(mcp_gateway: McpGateway) -> None:
    """A message with the command of a prompt reaches the agent as the prompt, and `/help` names it."""
    async with mcp_gateway.client() as client:
        asked = await _call(client, "ask", text="/sums_greet Ada", conversation="prompts")
        assert "Say hello to Ada." in asked["output"]
    conversation = asked["conversationId"]
    said = await mcp_gateway.mine.call("POST", f"/conversations/{conversation}/messages", {"text": "/help"})
    assert said.status in {200, 202}, said.body
    notices = [
        event["data"]["text"]
        for event in await mcp_gateway.process.events(conversation)
        if event["type"] == "message.completed" and event["data"]["role"] == "notice"
    ]
    assert any("`/sums_greet name`" in text for text in notices)
