"""The connections to models' servers: retries as the server asks, keys, and reuse."""

from __future__ import annotations

import pytest
from aiohttp import web

from agent_tools import RecordingTools, agent_spec, collect_steps, turn_input
from gateway.agents.clients.errors import ModelUnreachable
from gateway.agents.clients.http import ModelAddress, ModelHttp
from gateway.agents.clients.openai_chat import http_error
from gateway.agents.clients.reply import Deadline
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import Delta
from model_rig import LS, failure_of, finished_step, open_loopback_model
from openai_server import ScriptedTurn

KEYS = Vendors(openai_api_key="sk-o", anthropic_api_key="sk-a").bound_keys()


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

    app = web.Application()
    app.router.add_post("/v1/chat/completions", refuse)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        async with open_model_agent(Vendors(trusted_base_urls=(url,), retries=2)) as agent:
            error = await failure_of(agent, turn_input(agent_spec(url)))
    finally:
        await runner.cleanup()
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
