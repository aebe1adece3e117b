"""A bucket that does not answer while an agent without a sandbox reads from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from api_server import ApiClient
from fault_proxy import fault_proxy
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall
from s3_servers import open_empty_store, s3_server

USES = [{"name": "papers", "workspaceId": "default", "sandbox": None}]


async def _start_reading(client: ApiClient) -> dict[str, Any]:
    shown = (await client.call("GET", "/accounts/me/agents/default")).body["config"]
    config = {key: shown[key] for key in ("model", "base_url")} | {"workspaces": USES}
    made = await client.call("POST", "/accounts/me/agents", {"name": "reader", "config": config})
    assert made.status == 201, made.body
    taken = await client.call("POST", "/agents/reader/turns", {"input": "read"})
    assert taken.status == 202, taken.body
    return dict(taken.body)


async def _wait_for(process: GatewayProcess, turn: dict[str, Any], type_: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            for event in await process.events(turn["conversationId"]):
                if event["type"] == type_:
                    return dict(event["data"])
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "call",
    [
        ToolCall(name="read", args={"path": "a.txt"}),
        ToolCall(name="glob", args={"pattern": "*"}),
        ToolCall(name="search", args={"text": "a"}),
    ],
    ids=lambda call: str(call.name),
)
async def test_a_long_read_of_a_bucket_is_shown_to_people(tmp_path: Path, call: ToolCall) -> None:
    """An event says that the turn loads the workspace, and the turn goes on once the bucket answers."""
    script = [ScriptedTurn(calls=[call]), ScriptedTurn(text="Done.")]
    with s3_server() as endpoint:
        async with (
            open_empty_store(endpoint) as (bucket, _store),
            fault_proxy(urlsplit(endpoint).port or 0) as proxy,
            OpenAIServer(script) as model,
            aiohttp.ClientSession() as session,
        ):
            env = {
                "DOVECOTE_AGENT__MODEL": "openai:loopback",
                "DOVECOTE_AGENT__BASE_URL": model.base_url,
                "DOVECOTE_WORKSPACES__STORE": "s3",
                "DOVECOTE_WORKSPACES__S3__BUCKET": bucket.bucket,
                "DOVECOTE_WORKSPACES__S3__ENDPOINT": f"http://127.0.0.1:{proxy.port}",
                "DOVECOTE_WORKSPACES__S3__ACCESS_KEY": "test",
                "DOVECOTE_WORKSPACES__S3__SECRET_KEY": "test",
            }
            async with gateway(tmp_path / "data", env=env) as process:
                client = ApiClient(session=session, url=process.url, key=process.key)
                proxy.black_hole()
                turn = await _start_reading(client)
                shown = await _wait_for(process, turn, "turn.waiting")
                assert shown == {"attempt": 1, "reason": "loading the workspace"}
                proxy.heal()
                await _wait_for(process, turn, "turn.completed")
