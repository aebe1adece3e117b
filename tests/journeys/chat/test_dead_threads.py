"""A thread was deleted or locked: its room gets its answers, and the other threads theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.discord.simulator.run import simulate as simulate_discord
from channels.slack.simulator import Simulator
from channels.slack.simulator.run import simulate as simulate_slack
from channels.telegram.simulator import simulate as simulate_telegram
from gateway_process import GatewayProcess, channel_env, gateway
from turn_requests import poll_until

SLACK_ROOM = "C0ROOM"
DISCORD_ROOM = 4004
GROUP = -1001234567890
WAIT_FOR_FILE = "while [ ! -e go ]; do sleep 0.1; done; echo pigeon"


async def write_file(process: GatewayProcess, name: str) -> None:
    """Write the file that a command waits for."""
    path = f"/accounts/me/workspaces/default/files/{name}"
    async with process.http() as http, http.put(path, data=b"x") as answer:
        assert answer.status < 300, await answer.text()


def moved_texts(platform: Simulator, word: str) -> list[str]:
    """Return the texts with a word that are in no thread."""
    posts = platform.messages(SLACK_ROOM)
    return [post.text for post in posts if word in post.text and post.thread is None]


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
            await platform.wait_until(lambda: bool(moved_texts(platform, "locked")), seconds=30)
            await write_file(process, "go")
            await platform.wait_until(
                lambda: any(
                    "pigeon" in post.text and not post.tasks and post.thread == healthy
                    for post in platform.messages(SLACK_ROOM)
                ),
                seconds=30,
            )
            (moved,) = moved_texts(platform, "locked")
    assert moved.startswith("For the thread !echo locked, which accepts no more messages:")


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
            await platform.delete_thread(thread)
            await write_file(process, "gone")
            (moved,) = await platform.wait_for_messages(1, chat=DISCORD_ROOM, seconds=30)
            await write_file(process, "go")
            *_, other = await platform.wait_for_messages(2, chat=DISCORD_ROOM, seconds=30)
    assert moved.text.startswith("For the thread `!while")
    assert ("gone" in moved.text, "pigeon" in other.text) == (True, True)


async def test_a_private_thread_of_discord_stays_private(tmp_path: Path) -> None:
    """Its channel has other readers, so the answer is suppressed."""
    async with simulate_discord() as platform:
        await platform.server_channel(DISCORD_ROOM)
        thread = await platform.thread(DISCORD_ROOM)
        platform.world.channel(thread).kind = 12
        async with gateway(tmp_path / "data", env=channel_env("discord", platform.settings())) as process:
            await platform.say(thread, f"<@{platform.world.bot['id']}> !{WAIT_FOR_FILE}")
            await poll_until(process, "/turns?state=running", lambda found: bool(found["items"]))
            await platform.delete_thread(thread)
            await write_file(process, "go")
            await poll_until(process, "/deliveries?state=suppressed", lambda found: bool(found["items"]))
            assert platform.messages(DISCORD_ROOM) == []


async def test_a_group_gets_a_jobs_result_for_a_deleted_topic(tmp_path: Path) -> None:
    """It is in the general topic, once, below a line that names the topic's conversation."""
    async with simulate_telegram() as platform:
        await platform.group(GROUP, forum=True)
        topic = await platform.topic(GROUP)
        async with gateway(tmp_path / "data", env=channel_env("telegram", platform.settings())) as process:
            await platform.say(GROUP, f"@dovecote_bot !&{WAIT_FOR_FILE}", thread=topic)
            await platform.wait_for_messages(1, chat=GROUP, seconds=30)
            await platform.delete_topic(GROUP, topic)
            await write_file(process, "go")
            *_, result = await platform.wait_for_messages(2, chat=GROUP, seconds=30)
            await poll_until(process, "/deliveries?state=delivered", lambda found: len(found["items"]) == 2)
            posts = [post.text for post in platform.messages(GROUP)]
    assert (len(posts), result.thread) == (2, None), posts
    assert ("exit code 0" in result.text, result.text.startswith("For the thread !&while")) == (True, True)
