"""On Telegram from question to file: streamed answer, approval, job, kill -9, the result in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bot_messages import wait_for_bot_message, wait_until_settled
from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env
from nats_servers import free_ports
from openai_server import OpenAIServer
from story_model import FULL_STORY, PARTIAL_STORY, StoryModel

PRIVATE = 4711
FORUM = -1_000_000_004_711


@asynccontextmanager
async def open_gateway(
    platform: Simulator, data: Path, *, mode: str, model: OpenAIServer
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose agent asks the model, with one Telegram channel that lets anyone in."""
    secret = {"webhook_secret": "journey-secret_1"} if mode == "webhook" else {}
    channel = channel_env("telegram", platform.settings(mode=mode, groups="always", **secret))
    (port,) = free_ports(1)
    agent = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
    public = {"DOVECOTE_PUBLIC_URL": f"http://127.0.0.1:{port}"}
    process = GatewayProcess(data, env={**channel, **agent, **public}, port=port)
    try:
        yield await process.start()
    finally:
        await process.stop()


@pytest.mark.parametrize(("mode", "place"), [("polling", "private"), ("webhook", "topic")])
async def test_from_the_question_to_the_file_through_kill_9(tmp_path: Path, mode: str, place: str) -> None:
    """Everything is sent once, in the place of the question, in every ingress mode, through a kill."""
    async with simulate() as platform, OpenAIServer(StoryModel()) as model:
        chat, topic = PRIVATE, None
        if place == "topic":
            await platform.group(FORUM, forum=True)
            chat, topic = FORUM, await platform.topic(FORUM)
        async with open_gateway(platform, tmp_path / "data", mode=mode, model=model) as process:
            await platform.say(chat, "tell me a story", user=7, thread=topic)
            await wait_until_story_visible(platform, chat)
            await process.kill()
            await process.start()
            await wait_for_bot_message(platform, FULL_STORY, room=chat)
            await platform.say(chat, "start the job", user=7, thread=topic)
            question = await wait_for_bot_message(platform, "May I run this?", room=chat)
            await wait_until_settled(process)
            await process.kill()
            await process.start()
            await platform.press(chat, question.id, question.buttons[0]["callback_data"], user=7)
            await wait_for_bot_message(platform, "It is under way.", room=chat)
            await wait_until_settled(process)
            await process.kill()
            await process.start()
            await wait_for_bot_message(platform, "The job said: pigeon", room=chat)
            await platform.wait_until(lambda: bool(files(platform, chat)), seconds=40)
    posts = platform.messages(chat)
    assert files(platform, chat) == [b"a feather"]
    assert {post.thread for post in posts} == {topic}
    once = [FULL_STORY, "It is under way.", "The job said: pigeon"]
    assert [sum(words in post.text for post in posts) for words in once] == [1, 1, 1]
    assert "Approved by" in question.text


async def wait_until_story_visible(platform: Simulator, chat: int) -> None:
    """Wait until the beginning of the story shows, as a preview or as a message."""

    def shows() -> bool:
        drafts = [draft.text for draft in platform.world.drafts if draft.chat == chat]
        return any(
            PARTIAL_STORY in text for text in (*drafts, *(post.text for post in platform.messages(chat)))
        )

    await platform.wait_until(shows, seconds=30)


def files(platform: Simulator, chat: int) -> list[bytes]:
    """Return the files the bot sent to a room."""
    return [post.file for post in platform.messages(chat) if post.file is not None]
