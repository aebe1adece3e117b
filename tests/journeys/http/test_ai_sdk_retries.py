"""The AI SDK and Codex repeat a request without a key or a count: after a lost connection it is the same.

The headers and the rules for retries are those of the npm packages `@ai-sdk/openai` 3, `ai` 6 and
`@openai/codex` 0.171.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway_process import GatewayProcess, gateway

AI_SDK = "ai/6.0.326 ai-sdk/openai/3.0.141 ai-sdk/provider-utils/4.0.1 runtime/node.js/20"
CODEX = "codex_exec/0.171.0 (Debian 12.0.0; x86_64) xterm (codex_exec; 0.171.0)"
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose default agent is the shell, with another that has no key for its model."""
    async with gateway(tmp_path / "data") as process:
        async with process.http() as session:
            body = {"name": "keyless", "config": {"model": "anthropic:any"}}
            async with session.post("/accounts/me/agents", json=body) as made:
                assert made.status == 201
        yield process


async def post(
    session: aiohttp.ClientSession, path: str, body: dict[str, Any], *, agent: str = AI_SDK
) -> tuple[int, str]:
    """Send a request as a client does; return the status and the body."""
    async with session.post(path, json=body, headers={"User-Agent": agent}) as answer:
        return answer.status, await answer.text()


def asking(command: str, **others: Any) -> dict[str, Any]:
    """Return a request for a completion."""
    return {"model": "default", "messages": [{"role": "user", "content": f"!{command}"}], **others}


async def inputs(session: aiohttp.ClientSession) -> list[str]:
    """Return the inputs of the account's turns."""
    async with session.get("/turns?limit=100") as answer:
        return [turn["input"] for turn in (await answer.json())["items"]]


async def wait_for_turn(session: aiohttp.ClientSession, *, count: int = 1) -> None:
    """Wait until so many turns are stored."""
    async with asyncio.timeout(60):
        while len(await inputs(session)) < count:  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.05)


async def lose(request: asyncio.Task[Any]) -> None:
    """Close the connection of a request."""
    request.cancel()
    await asyncio.wait([request])


@pytest.mark.parametrize(
    ("is_killed", "agent"),
    [(True, AI_SDK), (False, AI_SDK), (True, CODEX)],
    ids=["kill -9", "time-out", "kill -9 under Codex"],
)
async def test_a_request_that_lost_its_connection_gets_its_turn(
    process: GatewayProcess, *, is_killed: bool, agent: str
) -> None:
    """The command of the first attempt runs once, and the retry has its answer."""
    async with process.http() as session:
        first = asyncio.create_task(post(session, CHAT, asking("sleep 2; echo late"), agent=agent))
        await wait_for_turn(session)
        if is_killed:
            await process.kill()
        await lose(first)
        if is_killed:
            await process.start()
    async with process.http() as session:
        status, body = await post(session, CHAT, asking("sleep 2; echo late"), agent=agent)
        assert (status, await inputs(session)) == (200, ["!sleep 2; echo late"])
        assert json.loads(body)["choices"][0]["message"]["content"]
        await post(session, CHAT, asking("sleep 2; echo late"), agent=agent)
        assert len(await inputs(session)) == 2


async def test_the_same_request_twice_at_once_is_two_turns(process: GatewayProcess) -> None:
    """Equal requests whose connections are open are no retries."""
    async with process.http() as session:
        one = asyncio.create_task(post(session, "/v1/chat/completions", asking("sleep 2")))
        await wait_for_turn(session)
        await asyncio.gather(one, post(session, "/v1/chat/completions", asking("sleep 2")))
        assert await inputs(session) == ["!sleep 2", "!sleep 2"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_failed_turn_is_not_repeated(process: GatewayProcess, path: str) -> None:
    """The clients repeat what is no invalid request of OpenAI's; a later request is a new turn."""
    body = {
        "model": "keyless",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "input": "hi",
    }
    async with process.http() as session:
        for count in (1, 2):
            status, events = await post(session, path, body)
            assert status == 200
            assert ('"code":"invalid_prompt"' if "responses" in path else "invalid_request_error") in events
            assert len(await inputs(session)) == count


async def test_a_failed_response_can_be_read(process: GatewayProcess) -> None:
    """The AI SDK refuses an error without a type as no answer, and its message is lost."""
    async with process.http() as session:
        status, answer = await post(session, "/v1/responses", {"model": "keyless", "input": "hi"})
    error = json.loads(answer)["error"]
    assert (status, error["type"], error["code"]) == (200, "invalid_request_error", "invalid_prompt")
    assert error["message"]
