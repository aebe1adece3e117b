"""Run a gateway with a simulated Telegram, for stories in a chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env, gateway

CHAT = 4711


@asynccontextmanager
async def telegram_gateway(data: Path, **env: str) -> AsyncIterator[tuple[Simulator, GatewayProcess]]:
    """Run a gateway with one Telegram channel that lets anyone in."""
    async with simulate() as platform:
        channel = channel_env("telegram", platform.settings(allow=["*"]))
        async with gateway(data, env={**channel, **env}) as process:
            yield platform, process


async def send_and_wait(platform: Simulator, text: str, *, containing: str = "", chat: int = CHAT) -> str:
    """Say something and return the first new answer that contains this."""
    before = len(platform.messages(chat))
    await platform.say(chat, text)
    return await wait_for_message(platform, containing, chat=chat, after=before)


async def wait_for_message(platform: Simulator, containing: str, *, chat: int = CHAT, after: int = 0) -> str:
    """Wait until a message of the bot contains this text, and return it."""

    def found() -> list[str]:
        return [post.text for post in platform.messages(chat)[after:] if containing in post.text]

    try:
        await platform.wait_until(lambda: bool(found()), seconds=20)
    except TimeoutError:
        said = [post.text for post in platform.messages(chat)]
        raise AssertionError(f"nothing said contains {containing!r}: {said}") from None
    return found()[0]
