"""Stories on platforms without buttons: a gateway process, the story's model, and waiting for messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from channels.inbox.simulator import SimulatedPlatform
from gateway_process import GatewayProcess, channel_env, reserve_port
from openai_server import OpenAIServer, Script
from story_model import StoryModel


@asynccontextmanager
async def open_story(
    platform: SimulatedPlatform,
    kind: str,
    settings: Mapping[str, Any],
    data: Path,
    script: Script | None = None,
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with the story's model and one channel, to which the platform posts."""
    async with OpenAIServer(script or StoryModel()) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        port = reserve_port()
        env |= {"OPENAI_API_KEY": "loopback", "DOVECOTE_PUBLIC_URL": f"http://127.0.0.1:{port}"}
        process = GatewayProcess(data, env={**env, **channel_env(kind, settings)}, port=port)
        try:
            await process.start()
            async with process.http() as session, session.get("/accounts/me/channels") as answer:
                (channel,) = (await answer.json())["items"]
            platform.hook_url = f"{process.url}/channels/{channel['id']}/inbound"
            yield process
        finally:
            await process.stop()


async def wait_for_question(script: StoryModel) -> None:
    """Wait until the model was asked for a story, which it does not finish the first time."""
    async with asyncio.timeout(60):
        while not script.story_requests:  # noqa: ASYNC110 - the model is asked by another process
            await asyncio.sleep(0.02)


async def kill_and_restart(process: GatewayProcess) -> None:
    """Kill the gateway, and start it again."""
    await process.kill()
    await process.start()
