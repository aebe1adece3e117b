"""SIGTERM during a model call: the turn is finished while the gateway drains, or released."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn

pytestmark = pytest.mark.timeout(120)

FINAL = {"completed", "failed", "cancelled"}


def _settings(server: OpenAIServer, **more: str) -> dict[str, str]:
    return {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": server.base_url, **more}


async def _ask(process: GatewayProcess, server: OpenAIServer) -> dict[str, Any]:
    """Submit a message and return its turn once the model has the request."""
    async with (
        process.http() as session,
        session.post("/agents/default/turns", json={"input": "hello"}) as response,
    ):
        queued: dict[str, Any] = await response.json()
    async with asyncio.timeout(30):
        await server.asked.wait()
    return queued


async def _until_closed(process: GatewayProcess) -> None:
    """Wait until a stopping gateway has closed its listeners; it is draining then."""
    async with asyncio.timeout(10):
        # The file is all that shows from outside that the listeners of another process are closed.
        while (process.data / "url").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _assert_answered(process: GatewayProcess, queued: dict[str, Any], text: str) -> None:
    """Wait for the turn's end and check that it was answered once and never failed."""
    state = ""
    async with process.http() as session, asyncio.timeout(30):
        while state not in FINAL:
            async with session.get(queued["statusUrl"]) as response:
                state = (await response.json())["state"]
            await asyncio.sleep(0.05)
    events = await process.events(queued["conversationId"])
    assert state == "completed", [event["data"].get("error") for event in events]
    assert "turn.failed" not in [event["type"] for event in events]
    replies = [event["data"]["text"] for event in events if event["data"].get("role") == "assistant"]
    assert replies == [text]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_model_call_under_way_is_finished_while_the_gateway_stops(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A model that answers within the drain time ends the turn; it is not asked again."""
    release = asyncio.Event()
    async with OpenAIServer([ScriptedTurn(text="Answered late.", release=release)]) as server:
        async with gateway(tmp_path / "data", env=_settings(server)) as process:
            queued = await _ask(process, server)
            stopped = asyncio.create_task(process.kill(number))
            await _until_closed(process)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await server.left.wait()
            release.set()
            assert await stopped == 0
            assert not [line for line in process.log if "turn.failed" in line]
            await process.start()
            await _assert_answered(process, queued, "Answered late.")
        assert server.requests == 1


async def test_a_model_call_that_outlasts_the_drain_is_made_again(tmp_path: Path) -> None:
    """The turn goes back into the queue; the next start asks the model again and answers."""
    never = asyncio.Event()
    script = [ScriptedTurn(release=never), ScriptedTurn(text="Second call.")]
    async with OpenAIServer(script) as server:
        env = _settings(server, DOVECOTE_DRAIN_TIMEOUT="1")
        async with gateway(tmp_path / "data", env=env) as process:
            queued = await _ask(process, server)
            assert await process.kill(signal.SIGTERM) == 0
            assert not [line for line in process.log if "turn.failed" in line]
            await process.start()
            await _assert_answered(process, queued, "Second call.")
        assert server.requests == 2


async def test_a_gateway_that_nohup_started_outlives_its_terminal(tmp_path: Path) -> None:
    """`nohup` ignores SIGHUP for the programs that it starts, and the gateway keeps that."""
    async with gateway(tmp_path / "data", wrapper=("nohup",), started=True) as process:
        os.kill(process.pid, signal.SIGHUP)
        async with process.http() as http, http.get("/readyz") as response:
            assert response.status == 200
        assert await process.kill(signal.SIGTERM) == 0
