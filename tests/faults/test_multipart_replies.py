"""A reply of many messages and a gateway killed in the middle of it: delivery continues there (G1, G2)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env

CHAT = 7
LAST = 4000
PATIENCE = 60.0


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Telegram on loopback."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def process(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Have a gateway with a Telegram channel, not started yet."""
    env = channel_env("telegram", platform.settings()) | {"DOVECOTE_FILES__MESSAGES_BEFORE_FILE": "0"}
    gateway = GatewayProcess(tmp_path / "data", env=env)
    yield gateway
    await gateway.stop()


def numbers(texts: Sequence[str]) -> list[int]:
    """Return the numbers that were counted in these texts, one text after the other."""
    return [int(number) for text in texts for number in re.findall(r"^\d+$", text, re.MULTILINE)]


async def deliveries(process: GatewayProcess) -> list[dict[str, Any]]:
    """Return the deliveries to the chat, in order."""
    async with process.http() as session, session.get("/deliveries", params={"limit": "100"}) as answer:
        items = (await answer.json())["items"]
    return sorted(items, key=lambda one: int(one["part"]))


@pytest.mark.parametrize(
    ("point", "repeated"),
    [
        ("delivery.claim.after_commit", 0),
        ("delivery.after_send", 1),
        ("delivery.noted", 0),
        ("delivery.settle.before_commit", 0),
        ("delivery.settle.after_commit", 0),
    ],
)
async def test_a_reply_goes_on_at_its_third_message(
    point: str, repeated: int, platform: Simulator, process: GatewayProcess
) -> None:
    """Killed at the third of five, the first two are not sent again; the third is sent at most once more."""
    await process.start(env={"DOVECOTE_FAULT_POINT": f"{point}:3"})
    await platform.say(CHAT, f"!seq 1 {LAST}")
    assert await process.wait_for_exit() == -9
    await process.start()
    await platform.wait_until(
        lambda: LAST in numbers([post.text for post in platform.messages(CHAT)][-1:]), seconds=PATIENCE
    )
    texts = [post.text for post in platform.messages(CHAT)]
    once = [text for text, _ in groupby(texts)]
    assert numbers(once) == list(range(1, LAST + 1))
    assert len(texts) - len(once) == repeated
    assert [text for text, copies in groupby(texts) if len(list(copies)) > 1] == once[2 : 2 + repeated]
    found = await deliveries(process)
    assert len({one["platform_id"] for one in found}) == len(found) == len(once)


@pytest.mark.parametrize("point", ["delivery.suppress.before_commit", "delivery.suppress.after_commit"])
async def test_a_dead_chat_stays_dead_through_a_kill_at(
    point: str, platform: Simulator, process: GatewayProcess
) -> None:
    """Killed while it suppresses a blocked chat, the gateway keeps the chat suppressed and sends nothing."""
    await process.start(env={"DOVECOTE_FAULT_POINT": point})
    await platform.fail(403, method="sendMessage", chat=CHAT)
    await platform.say(CHAT, f"!seq 1 {LAST}")
    assert await process.wait_for_exit() == -9
    await process.start()
    await platform.say(CHAT + 1, "!echo other")
    await platform.wait_until(lambda: bool(platform.messages(CHAT + 1)), seconds=PATIENCE)
    async with process.http() as session:
        query = {"limit": "100", "state": "suppressed"}
        while True:
            async with session.get("/deliveries", params=query) as answer:
                ended = (await answer.json())["items"]
            if len(ended) > 1 and len(ended) == len(await deliveries(process)) - 1:
                break
            await asyncio.sleep(0.05)
    assert platform.messages(CHAT) == []
    assert {"blocked" in one["error"] for one in ended} == {True}
    assert [name for name, sent in platform.calls if sent.get("chat_id") == str(CHAT)].count(
        "sendMessage"
    ) == 1
