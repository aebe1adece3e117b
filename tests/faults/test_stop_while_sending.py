"""A gateway that is told to stop while a message is on its way to the platform."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from channels.telegram.simulator import simulate
from gateway_process import GatewayProcess, channel_env

pytestmark = pytest.mark.timeout(120)

CHAT = 42
SECONDS = 2.0


async def test_a_message_on_its_way_is_waited_for(tmp_path: Path) -> None:
    """The channel stays open until the platform has answered, so that nothing is in doubt or said again."""
    async with simulate() as platform:
        gateway = GatewayProcess(tmp_path / "data", env=channel_env("telegram", platform.settings()))
        await gateway.start()
        try:
            await platform.dawdle(SECONDS, method="sendMessage")
            await platform.say(CHAT, "!echo pigeon")
            async with asyncio.timeout(30):
                # A call that is not answered yet changes nothing in Telegram that could be waited for.
                while not any(name == "sendMessage" for name, _ in platform.calls):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await gateway.kill(signal.SIGTERM) == 0
            await gateway.start()
            await platform.say(CHAT, "!echo dove")
            await platform.wait_until(
                lambda: any("dove" in post.text for post in platform.messages(CHAT)), seconds=30
            )
        finally:
            await gateway.stop()
        assert [post.text for post in platform.messages(CHAT) if "pigeon" in post.text] == ["pigeon"]
        assert not [line for line in gateway.log if "delivery.attempted" in line and "warning" in line]
