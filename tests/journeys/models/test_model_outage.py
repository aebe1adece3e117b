"""A model's service that is down for a while: the turn waits for it instead of failing."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from gateway_process import gateway
from openai_server import OpenAIServer, echo


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_turn_is_answered_once_its_model_is_back(tmp_path: Path) -> None:
    """No model listens at first: the turn returns to the queue, and is answered when the model is there."""
    port = free_port()
    env = {
        "DOVECOTE_AGENT__MODEL": "openai:loopback",
        "DOVECOTE_AGENT__BASE_URL": f"http://127.0.0.1:{port}/v1",
    }
    async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
        async with session.post("/agents/default/turns", json={"input": "hello"}) as answer:
            queued = await answer.json()
        async with asyncio.timeout(60):
            while not any("turn.retry_scheduled" in line for line in process.log):
                await process.events(queued["conversationId"])
            async with OpenAIServer(echo, port=port):
                state = ""
                while state not in {"completed", "failed", "cancelled"}:
                    async with session.get(queued["statusUrl"]) as answer:
                        state = (await answer.json())["state"]
                    await asyncio.sleep(0.05)
            events = await process.events(queued["conversationId"])
            while not any(event["data"].get("role") == "assistant" for event in events):
                events = await process.events(queued["conversationId"])
                await asyncio.sleep(0.05)
    kinds = [event["type"] for event in events]
    assert state == "completed"
    assert kinds.count("turn.started") >= 2
    assert "turn.failed" not in kinds
    (said,) = [event["data"] for event in events if event["data"].get("role") == "assistant"]
    assert said["text"] == "echo: hello"
