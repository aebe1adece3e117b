"""A budget of which a running request has reserved the rest: other turns wait for what it gives back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, last_text
from turn_requests import is_finished, poll_until, start_turn


async def until_retrying(process: GatewayProcess, conversation: str) -> dict[str, Any]:
    """Return the first event that says when a turn is tried again."""
    async with asyncio.timeout(60):
        while True:
            for event in await process.events(conversation):
                assert event["type"] != "turn.failed", event
                if event["type"] == "turn.retrying":
                    return dict(event["data"])


@pytest.mark.parametrize("limit", ["BUDGET_TOKENS", "BUDGET_DAY_TOKENS"])
async def test_a_turn_waits_for_what_is_reserved(tmp_path: Path, limit: str) -> None:
    """It does not run beside the other one, says why it waits, and runs when that one has used less."""
    release = asyncio.Event()

    def script(body: dict[str, Any]) -> ScriptedTurn:
        return ScriptedTurn(text="done", release=release if "hold" in last_text(body) else None)

    async with OpenAIServer(script) as model:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            f"DOVECOTE_AGENT__LIMITS__{limit}": "1001",
        }
        async with gateway(tmp_path / "data", env=env) as process:
            held = await start_turn(process, "hold", conversation="one")
            async with asyncio.timeout(60):
                await model.asked.wait()
            other = await start_turn(process, "other", conversation="two")
            waiting = await until_retrying(process, other["conversationId"])
            assert "has no room beside the running requests: 0 of 1,001, and " in waiting["error"]
            assert model.requests == 1
            release.set()
            for turn in (held, other):
                ended = await poll_until(process, f"/status/{turn['turnId']}", is_finished)
                assert ended["state"] == "completed", ended
