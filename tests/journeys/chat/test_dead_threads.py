"""A thread that was deleted or locked accepts no message; the room's other threads still get theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.discord.simulator.run import simulate as simulate_discord
from channels.slack.simulator.run import simulate as simulate_slack
from gateway_process import GatewayProcess, channel_env, gateway
from turn_requests import poll_until

SLACK_ROOM = "C0ROOM"
DISCORD_ROOM = 4004
WAIT_FOR_FILE = "while [ ! -e go ]; do sleep 0.1; done; echo pigeon"


async def write_file(process: GatewayProcess, name: str) -> None:
    """Write the file that a command waits for."""
    path = f"/accounts/me/workspaces/default/files/{name}"
    async with process.http() as http, http.put(path, data=b"x") as answer:
        assert answer.status < 300, await answer.text()


def has_dead(found: dict[str, Any]) -> bool:
    """Return whether a delivery was given up."""
    return any(one["state"] == "dead" for one in found["items"])


@pytest.mark.parametrize("code", ["restricted_action_thread_locked", "cannot_reply_to_message"])
async def test_a_locked_thread_of_slack_silences_no_other(tmp_path: Path, code: str) -> None:
    """A command of another thread ends after the refusal, and its output arrives."""
    async with simulate_slack() as platform:
        platform.world.trigger_seconds = platform.poster.timeout = 60.0
        async with gateway(tmp_path / "data", env=channel_env("slack", platform.settings())) as process:
            healthy = await platform.say(SLACK_ROOM, f"<@U0BOT> !{WAIT_FOR_FILE}")
            await poll_until(process, "/turns?state=running", lambda found: bool(found["items"]))
            await platform.wait_until(lambda: bool(platform.messages(SLACK_ROOM)), seconds=30)
            await platform.fail(code, times=1, method="chat.postMessage")
            await platform.say(SLACK_ROOM, "<@U0BOT> !echo locked")
            await poll_until(process, "/deliveries", has_dead)
            await write_file(process, "go")
            await platform.wait_until(
                lambda: any(
                    "pigeon" in post.text and not post.tasks and post.thread == healthy
                    for post in platform.messages(SLACK_ROOM)
                ),
                seconds=30,
            )


async def test_a_deleted_thread_of_discord_silences_no_other(tmp_path: Path) -> None:
    """A thread is deleted while a command runs in it; the channel still gets the output of its own."""
    async with simulate_discord() as platform:
        await platform.server_channel(DISCORD_ROOM)
        thread = await platform.thread(DISCORD_ROOM)
        env = channel_env("discord", platform.settings(allow=["*"]))
        async with gateway(tmp_path / "data", env=env) as process:
            bot = f"<@{platform.world.bot['id']}>"
            await platform.say(DISCORD_ROOM, f"{bot} !{WAIT_FOR_FILE}")
            await platform.say(thread, f"{bot} !while [ ! -e gone ]; do sleep 0.1; done; echo gone")
            await poll_until(process, "/turns?state=running", lambda found: len(found["items"]) == 2)
            platform.world.channels.pop(str(thread))
            await write_file(process, "gone")
            await poll_until(process, "/deliveries", has_dead)
            await write_file(process, "go")
            await platform.wait_until(
                lambda: any("pigeon" in post.text for post in platform.messages()), seconds=30
            )
