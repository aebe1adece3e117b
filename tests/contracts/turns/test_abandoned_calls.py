"""Turns whose client never returns the results of its tools do not wait for ever."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
from openai import AsyncOpenAI
from sqlalchemy import update

from delivery.database.clock import utc_now
from gateway.app import RunningGateway
from gateway.maintenance.janitor import Janitor
from gateway.store.tables import approvals
from in_process_gateway import gateway_in_process
from openai_server import OpenAIServer, ScriptedTurn, ToolCall

DAYS = 3
TOOL: Any = {"type": "function", "function": {"name": "city", "parameters": {"type": "object"}}}
MODEL = "openai:loopback"


def call_city(_body: dict[str, Any]) -> ScriptedTurn:
    """Call the client's tool."""
    return ScriptedTurn(calls=[ToolCall(name="city", args={"name": "Paris"})])


async def make_older(running: RunningGateway, call: str, age: timedelta) -> None:
    """Let a call have been made earlier."""
    changed = update(approvals).where(approvals.c.id == call.replace("call_", "apr_"))
    async with running.services.transactions.database.begin() as connection:
        await connection.execute(changed.values(created_at=utc_now() - age))


async def next_event(session: aiohttp.ClientSession, conversation: str, kind: str) -> Any:
    """Return the first event of a kind in a conversation."""
    path, headers = f"/conversations/{conversation}/events", {"Accept": "text/event-stream"}
    async with asyncio.timeout(30), session.get(path, params={"after": 0}, headers=headers) as stream:
        async for line in stream.content:
            if line.startswith(b"data:") and json.loads(line[5:])["type"] == kind:
                return json.loads(line[5:])
    raise AssertionError("the stream ended")


async def waiting_calls(running: RunningGateway, key: str) -> set[str]:
    """Return the calls that wait for results."""
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(running.url, headers=headers) as session,
        session.get("/approvals?state=pending") as answer,
    ):
        return {one["id"].replace("apr_", "call_") for one in (await answer.json())["items"]}


async def test_a_turn_without_results_is_cancelled_after_the_set_time(tmp_path: Path) -> None:
    """Structured output by a tool leaves it waiting; one that waits for less time gets its results.

    Zero days let both wait.
    """
    async with OpenAIServer(call_city) as model:
        env = {"PATH": os.environ["PATH"], "DOVECOTE_AGENT__MODEL": MODEL}
        env["DOVECOTE_AGENT__BASE_URL"] = model.base_url
        async with gateway_in_process(tmp_path / "data", env) as running:
            key = (tmp_path / "data" / "key").read_text().strip()
            transactions = running.services.transactions
            janitors = [
                Janitor(transactions.database, transactions._relay, transactions.wake_soon, call_days=days)
                for days in (0, DAYS)
            ]
            async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0) as client:

                async def ask() -> tuple[Any, str]:
                    asked: Any = {"model": "default", "tools": [TOOL]}
                    said: Any = [{"role": "user", "content": "which city?"}]
                    found = await client.chat.completions.create(messages=said, **asked)
                    calls: Any = found.choices[0].message.tool_calls
                    return found, calls[0].id

                (old, old_call), (_, young_call) = await ask(), await ask()
                await make_older(running, old_call, timedelta(days=DAYS, hours=1))
                await make_older(running, young_call, timedelta(days=DAYS, hours=-1))
                await janitors[0].cancel_abandoned()
                assert (await waiting_calls(running, key)) == {old_call, young_call}
                await janitors[1].cancel_abandoned()
            headers = {"Authorization": f"Bearer {key}"}
            async with aiohttp.ClientSession(running.url, headers=headers) as session:
                cancelled = await next_event(session, old.conversation, "turn.cancelled")
            waiting = await waiting_calls(running, key)
    assert f"no results of its client's tools in {DAYS} days" in json.dumps(cancelled)
    assert waiting == {young_call}
