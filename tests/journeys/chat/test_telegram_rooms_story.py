"""A team lives with the bot on Telegram: topics, webhooks, albums, a group that moves, orders in a group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bot_messages import wait_for_bot_message, wait_until_delivered
from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env, gateway
from nats_servers import free_ports

FORUM = -1_000_000_004_711
GROUP = -4711
PRIVATE = 4711
SECRET = "journey-secret_1"


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Telegram on loopback, with a forum and a group."""
    async with simulate() as simulator:
        await simulator.group(FORUM, forum=True)
        await simulator.group(GROUP)
        yield simulator


def settings_of(platform: Simulator, **others: Any) -> dict[str, str]:
    """Return the environment of a gateway with one Telegram channel that lets anyone in."""
    return channel_env("telegram", platform.settings(allow=["*"], **others))


@pytest.fixture
async def running(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway that polls."""
    async with gateway(tmp_path / "data", env=settings_of(platform, reactions=True)) as process:
        yield process


async def test_a_topics_job_comes_home_to_its_topic_through_kill_9(
    platform: Simulator, running: GatewayProcess
) -> None:
    """Each topic is a conversation: answer and late result arrive where the question was, with a reaction."""
    topic = await platform.topic(FORUM)
    asked = await platform.say(FORUM, "@dovecote_bot !&sleep 2; echo pigeon", user=7, thread=topic)
    started = await wait_for_bot_message(platform, "Started job", room=FORUM)
    await wait_until_delivered(running, 1)
    done = [{"type": "emoji", "emoji": "👍"}]
    question = platform.world.posts[FORUM, asked]
    await platform.wait_until(lambda: question.raw.get("reactions") == done, seconds=25)
    await running.kill()
    await running.start()
    result = await wait_for_bot_message(platform, "pigeon", room=FORUM)
    assert (started.thread, result.thread) == (topic, topic)


async def test_a_comments_job_comes_home_to_its_post_through_kill_9(
    platform: Simulator, running: GatewayProcess
) -> None:
    """Answer and late result are among the comments of the post; another post's are another conversation."""
    discussion = FORUM - 1
    await platform.group(discussion)
    await platform.discussion(discussion, discussion - 1)
    roots = [await platform.publish(discussion, text) for text in ("one", "two")]
    await platform.say(discussion, "@dovecote_bot !&sleep 2; echo pigeon", user=7, reply_to=roots[0])
    await platform.say(discussion, "@dovecote_bot !echo dove", user=7, reply_to=roots[1])
    started = await wait_for_bot_message(platform, "Started job", room=discussion)
    other = await wait_for_bot_message(platform, "dove", room=discussion)
    await wait_until_delivered(running, 2)
    await running.kill()
    await running.start()
    result = await wait_for_bot_message(platform, "pigeon", room=discussion)
    assert (started.thread, result.thread, other.thread) == (roots[0], roots[0], roots[1])


async def test_a_job_follows_its_group(platform: Simulator, running: GatewayProcess) -> None:
    """A group that becomes a supergroup while a job runs gets the result at its new id."""
    await platform.say(GROUP, "@dovecote_bot !&sleep 2; echo pigeon", user=7)
    await wait_for_bot_message(platform, "Started job", room=GROUP)
    await wait_until_delivered(running, 1)
    new = await platform.migrate(GROUP)
    assert (await wait_for_bot_message(platform, "pigeon", room=new)).chat == new


async def test_an_order_in_a_group_needs_no_slash(platform: Simulator, running: GatewayProcess) -> None:
    """After a mention the bare word is the order, and `/help` alone is one too."""
    await platform.say(GROUP, "@dovecote_bot status", user=7)
    first = (await platform.wait_for_messages(1, chat=GROUP))[0]
    await platform.say(GROUP, "/status@another_bot", user=7)
    await platform.say(GROUP, "/help@dovecote_bot", user=7)
    await wait_for_bot_message(platform, "/new", room=GROUP)
    assert len(platform.messages(GROUP)) == 2
    assert first.id == platform.messages(GROUP)[0].id


async def test_a_webhook_brings_an_album_as_one_message(platform: Simulator, tmp_path: Path) -> None:
    """Posted parts are acknowledged one by one and answered once."""
    (port,) = free_ports(1)
    hook = settings_of(platform, mode="webhook", webhook_secret=SECRET)
    env = {**hook, "DOVECOTE_PUBLIC_URL": f"http://127.0.0.1:{port}"}
    process = GatewayProcess(tmp_path / "data", env=env, port=port)
    try:
        await process.start()
        await platform.send_album(PRIVATE, [b"one", b"two"], caption="!echo two pictures")
        await wait_for_bot_message(platform, "two pictures", room=PRIVATE)
        await platform.wait_until(lambda: not platform.world.updates)
        await platform.say(PRIVATE, "!echo the end")
        await wait_for_bot_message(platform, "the end", room=PRIVATE)
    finally:
        await process.stop()
    assert ["two pictures" in post.text for post in platform.messages(PRIVATE)] == [True, False]
