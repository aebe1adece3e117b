"""Batches of JSON-RPC at the gateway's MCP endpoint: version 2025-03-26 has them, later ones do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from api_server import ApiClient
from gateway_process import gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiClient]:
    """Run a gateway whose agent is the shell, with an API client of its account."""
    data = tmp_path_factory.mktemp("batches") / "data"
    async with gateway(data) as process, process.http() as session:
        yield ApiClient(session=session, url=process.url, key=process.key)


def _request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _ask(number: int, text: str) -> dict[str, Any]:
    return _request(number, "tools/call", name="ask", arguments={"text": text, "conversation": "batches"})


async def test_each_request_of_a_batch_is_answered(mine: ApiClient) -> None:
    """Notifications have no answer, an unknown method has an error of its own; alone they are accepted."""
    started = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    batch = [started, _request(1, "ping"), _request(2, "tools/burn"), _request(3, "initialize")]
    answered = await mine.call("POST", "/mcp", batch)
    assert answered.status == 200, answered.body
    found = {one["id"]: one for one in answered.body}
    assert found.keys() == {1, 2, 3}
    assert found[1]["result"] == {}
    assert [found[number]["error"]["code"] for number in (2, 3)] == [-32601, -32600]
    assert (await mine.call("POST", "/mcp", [started, started])).status == 202


async def test_calls_of_a_batch_with_one_idempotency_key_are_different_calls(mine: ApiClient) -> None:
    """Each starts a turn of its own; the repeated batch has the same answers and starts none."""
    batch = [_ask(1, "!echo one"), _ask(2, "!echo two")]
    first = await mine.call("POST", "/mcp", batch, **{"Idempotency-Key": "batch-1"})
    results = {one["id"]: one["result"]["structuredContent"] for one in first.body}
    assert ("one" in results[1]["output"], "two" in results[2]["output"]) == (True, True)
    again = await mine.call("POST", "/mcp", batch, **{"Idempotency-Key": "batch-1"})
    assert again.body == first.body


async def test_what_is_no_batch_of_this_version_is_refused(mine: ApiClient) -> None:
    """The problem names the message and the remedy."""
    ping = _request(1, "ping")
    later = await mine.call("POST", "/mcp", [ping], **{"MCP-Protocol-Version": "2025-06-18"})
    assert (later.status, later.body["error"]["code"]) == (422, -32600)
    assert "send each message by itself" in later.body["errors"][0]["detail"]
    wrong = await mine.call("POST", "/mcp", [ping, {"jsonrpc": "1.0", "id": 2, "method": "ping"}, 7])
    assert (wrong.status, wrong.body["errors"][0]["pointer"]) == (422, "/1/jsonrpc")
    assert (await mine.call("POST", "/mcp", [])).status == 422
    many = await mine.call("POST", "/mcp", [ping] * 21)
    assert (many.status, many.body["errors"][0]["detail"]) == (
        422,
        "at most 20 messages in one batch, not 21",
    )
