"""Stop a gateway while it sends a message to the platform."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env
from gateway_process import gateway as a_gateway

pytestmark = pytest.mark.timeout(120)

CHAT = 42
SECONDS = 2.0
LOOPBACK = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}


async def _start_slow_send(platform: Simulator) -> None:
    """Send a message that the platform answers slowly, and wait until the platform has it."""
    await platform.dawdle(SECONDS, method="sendMessage")
    await platform.say(CHAT, "!echo pigeon")
    async with asyncio.timeout(30):
        # A call that is not answered yet changes nothing in Telegram that could be waited for.
        while not any(name == "sendMessage" for name, _ in platform.calls):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _assert_sent_once(platform: Simulator, gateway: GatewayProcess) -> None:
    """Send another message; any second copy of the first would have arrived before it."""
    await platform.say(CHAT, "!echo dove")
    await platform.wait_until(
        lambda: any("dove" in post.text for post in platform.messages(CHAT)), seconds=30
    )
    assert [post.text for post in platform.messages(CHAT) if "pigeon" in post.text] == ["pigeon"]
    assert not [line for line in gateway.log if "detail='sendMessage" in line]


async def test_a_message_on_its_way_is_waited_for(tmp_path: Path) -> None:
    """The channel stays open until the platform has answered, so no send is uncertain or repeated."""
    async with simulate() as platform:
        gateway = GatewayProcess(tmp_path / "data", env=channel_env("telegram", platform.settings()))
        await gateway.start()
        try:
            await _start_slow_send(platform)
            assert await gateway.kill(signal.SIGTERM) == 0
            await gateway.start()
            await _assert_sent_once(platform, gateway)
        finally:
            await gateway.stop()


async def test_a_channel_that_is_changed_while_sending_waits_too(tmp_path: Path) -> None:
    """New settings open a new connection when what goes over the old one has arrived."""
    async with simulate() as platform, a_gateway(tmp_path / "data", env=LOOPBACK) as gateway:
        body = {"name": "tg", "kind": "telegram", "settings": platform.settings()}
        async with gateway.http() as session:
            async with session.post("/accounts/me/channels", json=body) as answer:
                assert answer.status == 201, await answer.text()
            await _start_slow_send(platform)
            change = {"settings": {**platform.settings(), "sends_per_second": 20}}
            async with session.patch("/accounts/me/channels/tg", json=change) as answer:
                assert answer.status == 200, await answer.text()
        await _assert_sent_once(platform, gateway)
