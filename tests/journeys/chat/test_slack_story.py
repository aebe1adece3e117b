"""A person on Slack: streamed answer, approval in a modal, job, kill -9, result and file in the thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bot_messages import (
    wait_for_bot_message,
    wait_until_delivered,
    wait_until_draft_recorded,
    wait_until_settled,
)
from channels.slack.simulator import Post, Simulator
from channels.slack.simulator.api.rate_limits import Rate
from channels.slack.simulator.run import simulate
from gateway_process import GatewayProcess, channel_env, gateway
from openai_server import OpenAIServer
from story_model import FULL_STORY, PARTIAL_STORY, StoryModel

ROOM = "C0ROOM"


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Slack on loopback."""
    async with simulate() as simulator:
        simulator.world.trigger_seconds = simulator.poster.timeout = 60.0  # for busy machines
        yield simulator


@asynccontextmanager
async def open_gateway(
    platform: Simulator, data: Path, *, mode: str = "socket", **env: str
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with one Slack channel open to everybody; in http mode Slack gets its address."""
    secret = {"signing_secret": platform.signing_secret} if mode == "http" else {}
    settings = channel_env("slack", platform.settings(mode=mode, **secret))
    async with gateway(data, env={**settings, **env}) as process:
        if mode == "http":
            async with process.http() as session, session.get("/accounts/me/channels") as answer:
                (channel,) = (await answer.json())["items"]
            platform.request_url = f"{process.url}/channels/{channel['id']}/inbound"
        yield process


@pytest.fixture
async def running(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway that has no model."""
    async with open_gateway(platform, tmp_path / "data") as process:
        yield process


def streaming(platform: Simulator) -> list[Post]:
    """Return the messages whose streams have not ended."""
    return [post for post in platform.messages(ROOM) if post.streaming]


def files(platform: Simulator) -> list[tuple[str, bytes, str | None]]:
    """Return (name, content, thread) of every file that the bot attached anywhere."""
    return [
        (file["title"], platform.world.contents[file["id"]], post.thread)
        for post in platform.messages()
        for file in post.raw.get("files", [])
    ]


async def kill_and_restart(process: GatewayProcess) -> None:
    """Kill the gateway, and start it again."""
    await process.kill()
    await process.start()


@pytest.mark.parametrize("mode", ["socket", "http"])
async def test_a_story_an_approval_and_a_job_through_kill_9(
    platform: Simulator, tmp_path: Path, mode: str
) -> None:
    """Everything is sent once, in the thread of the question, through kills and restarts."""
    async with OpenAIServer(StoryModel()) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        env["OPENAI_API_KEY"] = "loopback"
        async with open_gateway(platform, tmp_path / "data", mode=mode, **env) as process:
            thread = await platform.say(ROOM, "<@U0BOT> tell me a story")
            story = await wait_for_bot_message(platform, PARTIAL_STORY, room=ROOM)
            assert story.streaming is not None
            await wait_until_draft_recorded(process.data)
            await kill_and_restart(process)
            await wait_for_bot_message(platform, FULL_STORY, room=ROOM)
            await platform.say(ROOM, "<@U0BOT> start the job", thread=thread)
            question = await wait_for_bot_message(platform, "May I run this?", room=ROOM)
            await wait_until_delivered(process, 2)
            await kill_and_restart(process)
            deny, approve = "deny_with:", "approve_with:"
            values = [button["value"] for button in question.buttons]
            assert [value for value in values if value.startswith(deny)]
            (wanted,) = [value for value in values if value.startswith(approve)]
            await platform.press(ROOM, question.ts, wanted)
            await platform.wait_until(lambda: bool(platform.open_modals()), seconds=20)
            await platform.submit("but only once")
            await wait_for_bot_message(platform, "It is under way.", room=ROOM)
            await platform.wait_until(lambda: question.buttons == [], seconds=30)
            await wait_until_delivered(process, 3)
            await kill_and_restart(process)
            await wait_for_bot_message(platform, "The job said: pigeon", room=ROOM)
            await platform.wait_until(lambda: bool(files(platform)), seconds=30)
            await wait_until_settled(process)
            await platform.wait_until(lambda: not streaming(platform), seconds=60)
    texts = [post.text for post in platform.messages(ROOM)]
    assert (story.text, texts.count(FULL_STORY)) == (FULL_STORY, 1)
    assert "Approved by" in question.text
    assert "but only once" in question.text
    assert [sum(words in text for text in texts) for words in ("under way", "The job said")] == [1, 1]
    assert files(platform) == [("feather.txt", b"a feather", thread)]
    assert {post.thread for post in platform.messages()} == {thread}


async def test_a_thumb_under_the_question_decides(platform: Simulator, tmp_path: Path) -> None:
    """Who would rather not press puts a thumb there, and the job runs."""
    async with OpenAIServer(StoryModel()) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with open_gateway(platform, tmp_path / "data", OPENAI_API_KEY="loopback", **env) as process:
            await platform.say(ROOM, "<@U0BOT> start the job")
            question = await wait_for_bot_message(platform, "May I run this?", room=ROOM)
            await wait_until_delivered(process, 1)
            await platform.react(ROOM, question.ts, "+1::skin-tone-3")
            await wait_for_bot_message(platform, "It is under way.", room=ROOM)
            await platform.wait_until(lambda: "Approved by" in question.text, seconds=20)


async def test_a_mention_is_answered_once_in_its_thread(platform: Simulator, running: GatewayProcess) -> None:
    """A mention arrives twice and is answered once, in the thread that it opens."""
    asked = await platform.say(ROOM, "<@U0BOT> !echo first")
    await platform.wait_for_messages(1, room=ROOM)
    await platform.say(ROOM, "<@U0BOT> !echo second", thread=asked)
    one, two = await platform.wait_for_messages(2, room=ROOM)
    assert ("first" in one.text, "second" in two.text) == (True, True)
    assert (one.thread, two.thread) == (asked, asked)


async def test_a_slash_command_is_answered(platform: Simulator, running: GatewayProcess) -> None:
    """`/dovecote help` lists the commands privately."""
    await platform.slash(ROOM, "help", user="U0BOB")
    await platform.wait_until(lambda: bool(platform.world.notices), seconds=20)
    (notice,) = platform.world.notices
    assert (notice["user"], "/status" in notice["text"]) == ("U0BOB", True)
    assert platform.messages(ROOM) == []


async def test_a_command_after_a_mention_is_executed_in_its_thread(
    platform: Simulator, running: GatewayProcess
) -> None:
    """`@bot status` in a thread is about that thread, and is answered there."""
    root = await platform.say(ROOM, "what a day")
    await platform.say(ROOM, "<@U0BOT> !echo hello", thread=root)
    await platform.wait_for_messages(1, room=ROOM)
    await platform.say(ROOM, "<@U0BOT> status", thread=root)
    answer = (await platform.wait_for_messages(2, room=ROOM))[-1]
    assert (answer.thread, "echo" in answer.text) == (root, False)


async def test_an_answer_is_shown_by_a_sign(platform: Simulator, running: GatewayProcess) -> None:
    """The question has one reaction of the bot while it is handled, and another once it is answered."""
    asked = await platform.say(ROOM, "<@U0BOT> !echo first")
    post = platform.world.get_post(ROOM, asked)
    assert post is not None
    await platform.wait_until(lambda: list(post.reactions) == ["white_check_mark"], seconds=20)
    assert "reactions.add" in [method for method, _ in platform.calls]


async def test_a_full_channel_keeps_to_slacks_pace_and_holds_no_other(
    platform: Simulator, running: GatewayProcess
) -> None:
    """One message a second goes to a channel, others are not held by it, and Slack refuses hardly any."""
    platform.rate_limits.rates["chat.postMessage"] = Rate(burst=1, a_second=1, in_room=True)
    for number in range(6):
        await platform.say(ROOM, f"<@U0BOT> !echo {number}")
    await platform.wait_for_messages(1, room=ROOM, seconds=30)
    await platform.say("C0OTHER", "<@U0BOT> !echo here")
    await platform.wait_for_messages(1, room="C0OTHER", seconds=30)
    await platform.wait_for_messages(6, room=ROOM, seconds=30)
    assert platform.messages()[-1].room == ROOM
    assert len({post.text for post in platform.messages(ROOM)}) == 6
    assert platform.rate_limits.refused <= 3  # without a pace: five at once, and their repetitions


async def test_a_long_call_is_a_task_while_it_runs(platform: Simulator, running: GatewayProcess) -> None:
    """The call appears in a message of its own before its answer, and is complete after it."""

    def plans() -> list[Post]:
        return [post for post in platform.messages(ROOM) if post.tasks]

    thread = await platform.say(ROOM, "<@U0BOT> !while [ ! -e go ]; do sleep 0.1; done; echo arrived")
    await platform.wait_until(lambda: bool(plans()), seconds=60)
    (plan,) = plans()
    ((title, status),) = plan.tasks.values()
    assert (title.startswith("bash: while"), status, plan.thread) == (True, "in_progress", thread)
    await platform.say(ROOM, "<@U0BOT> /stop", thread=thread)
    await platform.wait_until(lambda: plan.streaming is None, seconds=60)
    assert len(plans()) == 1
