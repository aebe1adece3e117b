"""The same story at a Discord that others wrote, from their own reading of its documentation."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway_process import channel_env, gateway

DRIVER = Path(__file__).parents[2] / "support" / "third_party_discord.mjs"
MODULES = os.environ.get("DISCORD_TWIN_MODULES", "")
"""The node_modules folder that holds npm's discord-digital-twin 0.1.1 (with spiceflow 1.19.0)."""

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and MODULES),
    reason="wants Node, and DISCORD_TWIN_MODULES naming a node_modules with discord-digital-twin",
)


class ThirdPartyDiscord:
    """The other Discord, a child process that runs one action at a time."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._turn = asyncio.Lock()
        self.about: dict[str, Any] = {}

    async def act(self, act: str, **fields: Any) -> Any:
        """Carry out an act; returns what it gave."""
        assert self._child.stdin is not None
        async with self._turn:
            self._child.stdin.write(json.dumps({"act": act, **fields}).encode() + b"\n")
            return await self.read()

    async def read(self) -> Any:
        """Read one line of the child's."""
        assert self._child.stdout is not None
        async with asyncio.timeout(20):
            return json.loads(await self._child.stdout.readline())

    def settings(self) -> dict[str, Any]:
        """Return channel settings that lead there."""
        reported = self.about
        return {
            "token": reported["token"],
            "api_url": reported["api"],
            "gateway_url": reported["gateway"],
            "allow": ["*"],
        }

    async def until(self, found: Callable[[list[str]], bool]) -> list[dict[str, Any]]:
        """Wait until the bot's messages are as wanted."""
        said: list[dict[str, Any]] = []
        for _ in range(600):
            messages = await self.act("messages")
            said = [one for one in messages if one["author"] == self.about["bot"]]
            if found([one["content"] for one in said]):
                return said
            await asyncio.sleep(0.05)  # it has nothing to wait for
        raise AssertionError(f"the bot said {said}")


@asynccontextmanager
async def third_party_discord() -> AsyncIterator[ThirdPartyDiscord]:
    """Run the other Discord."""
    child = await asyncio.create_subprocess_exec(
        "node",
        str(DRIVER),
        MODULES,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    running = ThirdPartyDiscord(child)
    try:
        running.about = await running.read()
        yield running
    finally:
        child.kill()
        await child.wait()


async def test_a_question_a_command_and_a_job_at_a_foreign_discord(tmp_path: Path) -> None:
    """What is asked is answered there, by mention and by command; a job's result comes through kill -9."""
    async with third_party_discord() as discord:
        env = channel_env("discord", discord.settings())
        async with gateway(tmp_path / "data", env=env) as process:
            mention = f"<@{discord.about['bot']}>"
            await discord.act("say", text=f"{mention} !echo **hello**")
            await discord.until(lambda said: any("hello" in text for text in said))
            await discord.act("command", name="ask", words="!echo asked")
            await discord.until(lambda said: any("asked" in text for text in said))
            await discord.act("say", text=f"{mention} !&sleep 3; echo pigeon")
            await discord.until(lambda said: any("Started job" in text for text in said))
            await process.kill()
            await process.start()
            await discord.until(lambda said: any("pigeon" in text for text in said if "Started" not in text))
