"""The connections to models' servers: retries as the server asks, keys, and reuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web

from agent_tools import RecordingTools, agent_spec, collect_steps, turn_input
from gateway.agents.clients.errors import ModelCallError, ModelUnreachable
from gateway.agents.clients.http import ModelAddress, ModelHttp
from gateway.agents.clients.openai_chat import http_error, stream_error
from gateway.agents.clients.openai_reply import ChatReply
from gateway.agents.clients.reply import Deadline, read_reply
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import Delta
from model_rig import LS, failure_of, finished_step, open_loopback_model
from openai_server import ScriptedTurn

KEYS = Vendors(openai_api_key="sk-o", anthropic_api_key="sk-a").bound_keys()


@asynccontextmanager
async def server(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Run a server of chat completions and return its base URL."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("wait", "requests"),
    [({"Retry-After": "0"}, 3), ({"retry-after-ms": "5"}, 3), ({"Retry-After": "600"}, 1)],
)
async def test_a_retry_after_of_the_server_is_respected(wait: dict[str, str], requests: int) -> None:
    """A short wait is kept before each retry; a long one is left to the gateway's own retries."""
    seen: list[web.Request] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response({"error": {"message": "slow down"}}, status=429, headers=wait)

    async with (
        server(refuse) as url,
        open_model_agent(Vendors(trusted_base_urls=(url,), retries=2)) as agent,
    ):
        error = await failure_of(agent, turn_input(agent_spec(url)))
    assert "HTTP 429" in str(error)
    assert error.retryable
    assert len(seen) == requests


async def test_requests_of_a_turn_share_a_connection() -> None:
    """An answer is read to its end, so that the next request needs no new connection."""
    script = [ScriptedTurn(calls=[LS]), ScriptedTurn(text="done")]
    async with open_loopback_model(script) as (server, agent):
        await collect_steps(agent, turn_input(agent_spec(server.base_url)), RecordingTools())
        assert server.requests == 2
    assert server.connections == 1


@pytest.mark.parametrize("sent", [b"", b"data: {}\n\n"], ids=["no response", "no end"])
@pytest.mark.parametrize(
    ("deadline", "error"),
    [({"seconds": 0.3}, "no answer within 0.3"), ({"seconds": 0, "silence": 0.3}, "nothing was received")],
    ids=["deadline", "silence"],
)
async def test_a_silent_server_is_given_up(deadline: dict[str, float], error: str, sent: bytes) -> None:
    """Before its response, and in the middle of it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if sent:
            await response.prepare(request)
            await response.write(sent)
        await asyncio.sleep(60)
        return response

    async with server(answer) as url, aclosing(ModelHttp({})) as http:
        address = ModelAddress(model="m", url=f"{url}/chat/completions", headers={}, error_of=http_error)
        decoder = ChatReply("m", provider="openai", url=url, error_of=stream_error)
        limit = Deadline("m", **deadline)
        with pytest.raises(ModelCallError, match=error):
            async with http.post(address, "{}", limit) as response:
                assert not [text async for text in read_reply(response, decoder, limit, "m")]


async def test_an_answer_of_300_pieces_is_joined() -> None:
    """Text that arrives faster than it is shown is handed over in few parts, and completely."""
    text = "word " * 300
    async with open_loopback_model([ScriptedTurn(text=text, pieces=300)]) as (server, agent):
        steps = await collect_steps(agent, turn_input(agent_spec(server.base_url)), RecordingTools())
    parts = [step.text for step in steps if isinstance(step, Delta)]
    assert "".join(parts) == text == finished_step(steps).output
    assert len(parts) < 300


@pytest.mark.parametrize(
    ("url", "header", "key"),
    [
        ("http://127.0.0.1:9/v1", "Authorization", "Bearer sk-o"),
        ("https://api.openai.com:8443/v1", "Authorization", "Bearer sk-o"),
        ("http://api.openai.com/v1", "Authorization", "Bearer sk-o"),
        ("https://api.openai.com/v1", "x-api-key", "sk-a"),
    ],
)
async def test_a_key_leaves_for_its_vendors_origins_only(url: str, header: str, key: str) -> None:
    """A request that carries a key elsewhere is refused before a connection is made."""
    http = ModelHttp(KEYS)
    address = ModelAddress(model="m", url=url, headers={header: key}, error_of=http_error)
    try:
        with pytest.raises(ModelUnreachable, match="not an address to which this key may be sent"):
            async with http.post(address, "{}", Deadline("m", 5)):
                pass
    finally:
        await http.aclose()
