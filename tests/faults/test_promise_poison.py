"""G11: a turn that kills the gateway each time is dead-lettered visibly; other turns are not affected."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.deployment import telegram_settings
from channels.telegram.simulator import simulate
from gateway.store.turn_state import ALONE_POINTS, DEAD_POINTS, QUARANTINE_POINTS
from gateway_process import GatewayProcess
from openai_server import OpenAIServer, ScriptedTurn, echo, last_text

POISONED, INNOCENT = 7, (8, 9, 10)
PATIENCE = 60.0
CRASHES = QUARANTINE_POINTS + -((QUARANTINE_POINTS - DEAD_POINTS) // ALONE_POINTS)
"""Crashes beside others until it runs alone, then five alone."""

pytestmark = pytest.mark.timeout(300)


async def test_g11_a_poison_turn_dies_alone(tmp_path: Path) -> None:
    """The gateway dies whenever the model sees the poison; after five times alone the turn is dead."""
    crashes = 0
    process = GatewayProcess(tmp_path / "data")

    def poisoned(body: dict[str, Any]) -> ScriptedTurn:
        nonlocal crashes
        if "poison" in last_text(body):
            crashes += 1
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return echo(body)

    async with OpenAIServer(poisoned) as model, simulate() as platform:
        process.env |= telegram_settings(platform) | {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
        }
        for chat in (POISONED, *INNOCENT):
            await platform.say(chat, "poison" if chat == POISONED else f"hello from {chat}")

        def answered(chat: int, text: str) -> bool:
            return any(text in post.text for post in platform.messages(chat))

        for _ in range(CRASHES):
            await process.start(wait=False)
            assert await process.wait_for_exit(60) == -9
        await process.start()
        await platform.wait_until(lambda: answered(POISONED, "given up"), seconds=PATIENCE)
        await platform.say(POISONED, "hello again")
        await platform.wait_until(
            lambda: (
                answered(POISONED, "echo: hello again")
                and all(answered(chat, f"echo: hello from {chat}") for chat in INNOCENT)
            ),
            seconds=PATIENCE,
        )
        await process.stop()
    assert crashes == CRASHES
