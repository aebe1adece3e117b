"""A person on Telegram: question, answer, job, kill -9, the result in the same chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot_messages import wait_until_delivered
from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env, gateway

CHAT = 4711


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Telegram on loopback."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def running(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with one Telegram channel that lets anyone in."""
    settings = platform.settings(allow=["*"])
    env = channel_env("telegram", settings)
    async with gateway(tmp_path / "data", env=env) as process:
        yield process


async def test_a_command_is_answered_in_its_chat(platform: Simulator, running: GatewayProcess) -> None:
    """What a person sends is answered in the same chat."""
    await platform.say(CHAT, "!echo hello")
    (answer,) = await platform.wait_for_messages(1, chat=CHAT)
    assert "hello" in answer.text


async def test_a_job_started_in_a_chat_comes_home_through_kill_9(
    platform: Simulator, running: GatewayProcess
) -> None:
    """The result of a job is sent once to the chat that asked for it, although the gateway was killed."""
    await platform.say(CHAT, "!&sleep 2; echo pigeon")
    (started,) = await platform.wait_for_messages(1, chat=CHAT)
    assert "Started job" in started.text
    await wait_until_delivered(running, 1)
    await running.kill()
    await running.start()
    said = await platform.wait_for_messages(2, chat=CHAT)
    assert "pigeon" in said[-1].text


async def test_a_message_sent_while_the_gateway_is_down_is_answered(
    platform: Simulator, running: GatewayProcess
) -> None:
    """Telegram keeps unacknowledged updates; they are answered when the gateway is back."""
    await running.kill()
    await platform.say(CHAT, "!echo patience")
    await running.start()
    (answer,) = await platform.wait_for_messages(1, chat=CHAT)
    assert "patience" in answer.text


async def test_an_unknown_sender_gets_a_code_and_no_answer(platform: Simulator, tmp_path: Path) -> None:
    """By default an unknown sender gets a pairing code, once, and nothing runs for them."""
    env = channel_env("telegram", platform.settings(allow=["pairing"]))
    async with gateway(tmp_path / "data", env=env):
        await platform.say(CHAT, "!echo secret")
        (answer,) = await platform.wait_for_messages(1, chat=CHAT)
    assert "dovecote channels pair telegram" in answer.text
    assert "secret" not in answer.text
