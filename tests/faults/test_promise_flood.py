"""M20: who floods the bot is refused once, and the others are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from channels.telegram.simulator import Simulator
from telegram_gateway import CHAT, send_and_wait, telegram_gateway, wait_for_message

BETWEEN = range(5001, 5006)
BEHIND = range(6001, 6006)
"""Other chats, between the waves and behind them: a chat takes a handful of answers, then one a second."""

ROUNDS = 3
BURST_SIZE = 60
LIMIT = 50


async def exchange_messages(platform: Simulator, chats: range, flood: int = 0) -> None:
    """Send one message in each of these chats right behind a wave of the flood, and wait for the answers.

    The wave has been received then.
    """
    for number in range(flood):
        await platform.say(CHAT, f"me again {number}")
    async with asyncio.TaskGroup() as group:
        for chat in chats:
            group.create_task(_say(platform, chat))
    await platform.wait_until(lambda: not platform.world.updates, seconds=60)


async def _say(platform: Simulator, chat: int) -> None:
    count = len(platform.messages(chat)) + 1
    await platform.say(chat, "hello")
    await platform.wait_for_messages(count, chat=chat, seconds=60)


def refusals(platform: Simulator) -> Sequence[str]:
    """Return how often the flooding user was refused."""
    return [post.text for post in platform.messages(CHAT) if "not processed" in post.text]


@pytest.mark.timeout(180)
async def test_m20_a_flood_is_refused_once_and_others_are_answered(tmp_path: Path) -> None:
    """Of 300 messages in a row 50 wait, one refusal is sent, and other users are answered while they wait."""
    async with telegram_gateway(tmp_path / "data") as (platform, _process):
        await exchange_messages(platform, BETWEEN)
        await exchange_messages(platform, BEHIND)
        begun = time.perf_counter()
        await platform.say(CHAT, "!sleep 600")
        await exchange_messages(platform, BEHIND, 2 * BURST_SIZE)  # fills the line
        for _ in range(ROUNDS):
            await exchange_messages(platform, BETWEEN)
            await exchange_messages(platform, BEHIND, BURST_SIZE)
        await wait_for_message(platform, "not processed")
        minutes = (time.perf_counter() - begun) / 60
        await send_and_wait(platform, "/status", containing=f"{LIMIT - 1} more wait")
        assert 1 <= len(refusals(platform)) <= 1 + minutes
        await send_and_wait(platform, "/stop", containing=f"Stopping {LIMIT} turns")
        await send_and_wait(platform, "!echo heard", containing="heard")
        said = [[len(platform.messages(chat)) for chat in chats] for chats in (BETWEEN, BEHIND)]
    assert said == [[1 + ROUNDS] * 5, [2 + ROUNDS] * 5], "each word is answered once"
