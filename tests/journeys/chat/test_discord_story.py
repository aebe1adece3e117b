"""A person on Discord: streamed answer, approval in a form, job, kill -9, result and file in the thread."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bot_messages import (
    wait_for_bot_message,
    wait_until_delivered,
    wait_until_draft_recorded,
    wait_until_settled,
)
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from gateway_process import GatewayProcess, channel_env, gateway
from openai_server import OpenAIServer
from story_model import FULL_STORY, PARTIAL_STORY, StoryModel

CHAT = 4711
ROOM = 4004
OTHER_TOKEN = base64.b64encode(b"700700700700700701").decode().rstrip("=") + ".simulated.discord-token_2"
LOOPBACK = {"DOVECOTE_EGRESS_ALLOW": '["127.0.0.0/8"]'}


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Discord on loopback, with a channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(ROOM)
        yield simulator


def settings_of(platform: Simulator, **others: Any) -> dict[str, str]:
    """Return the environment of a gateway with one Discord channel that lets anyone in."""
    return channel_env("discord", platform.settings(allow=["*"], **others))


@pytest.fixture
async def running(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway that listens at the socket."""
    async with gateway(tmp_path / "data", env=settings_of(platform)) as process:
        assert platform.sessions.identified == 1, "ready means that what is said is heard"
        yield process


def files(platform: Simulator) -> list[tuple[str, bytes, int]]:
    """Return (name, content, thread) of every file that the bot attached anywhere."""
    contents = list(platform.world.files.items())
    return [
        (file["filename"], content, int(post.raw["channel_id"]))
        for post in platform.messages()
        for file in post.raw.get("attachments", [])
        for path, content in contents
        if path.endswith(f"/{file['filename']}")
    ]


@asynccontextmanager
async def open_gateway(
    platform: Simulator, data: Path, mode: str, model: OpenAIServer
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose agent asks the model; in interactions mode Discord gets its address."""
    env = settings_of(platform, mode=mode, public_key=platform.public_key)
    env |= {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
    async with gateway(data, env={**env, "OPENAI_API_KEY": "loopback"}) as process:
        await set_endpoint(platform, process, mode)
        yield process


async def set_endpoint(platform: Simulator, process: GatewayProcess, mode: str) -> None:
    """Set the endpoint, as in the portal, and see it pass the trial."""
    if mode == "interactions":
        async with process.http() as session, session.get("/accounts/me/channels") as answer:
            (channel,) = (await answer.json())["items"]
        assert await platform.set_endpoint(f"{process.url}/channels/{channel['id']}/inbound")


async def ask(platform: Simulator, thread: int, mode: str, words: str) -> None:
    """Ask in a thread, by a mention or by `/ask`."""
    if mode == "gateway":
        await platform.say(ROOM, f"<@{platform.world.bot['id']}> {words}", thread=thread)
    else:
        await platform.command(thread, "ask", words)


@pytest.mark.parametrize("mode", ["gateway", "interactions"])
async def test_a_story_an_approval_and_a_job_through_kill_9(
    platform: Simulator, tmp_path: Path, mode: str
) -> None:
    """Everything is sent once, in the thread of the question, through kills and restarts."""
    thread = await platform.thread(ROOM)
    async with (
        OpenAIServer(StoryModel()) as model,
        open_gateway(platform, tmp_path / "data", mode, model) as process,
    ):
        await ask(platform, thread, mode, "tell me a story")
        story = await wait_for_bot_message(platform, PARTIAL_STORY)
        await wait_until_draft_recorded(process.data)
        await process.kill()
        await process.start()
        await set_endpoint(platform, process, mode)
        story = await wait_for_bot_message(platform, FULL_STORY)
        await ask(platform, thread, mode, "start the job")
        question = await wait_for_bot_message(platform, "May I run this?")
        await wait_until_delivered(process, 2)
        await process.kill()
        await process.start()
        opened = await platform.press(thread, question.id, "Approve with comment…")
        await platform.wait_until(lambda: opened.modal is not None, seconds=20)
        await platform.submit(opened, "but only once")
        await wait_for_bot_message(platform, "It is under way.")
        decided = await wait_for_bot_message(platform, "Approved by")
        await wait_until_delivered(process, 3)
        await process.kill()
        await process.start()
        await wait_for_bot_message(platform, "The job said: pigeon")
        await platform.wait_until(lambda: bool(files(platform)), seconds=30)
        await wait_until_settled(process)
    texts = [post.text for post in platform.messages()]
    assert (decided.id, decided.buttons, "but only once" in decided.text) == (question.id, [], True)
    assert story.history[0].startswith(PARTIAL_STORY)
    for words in (FULL_STORY, "May I run", "Approved by", "under way", "The job said"):
        assert sum(words in text for text in texts) == (0 if words == "May I run" else 1)
    assert files(platform) == [("feather.txt", b"a feather", thread)]
    assert {post.thread for post in platform.messages()} == {thread}


async def test_what_is_said_in_private_is_answered(platform: Simulator, running: GatewayProcess) -> None:
    """What a person sends is answered in the same conversation."""
    await platform.say(CHAT, "!echo hello")
    (answer,) = await platform.wait_for_messages(1, chat=CHAT)
    assert "hello" in answer.text


async def test_a_slash_command_is_answered_in_its_thread(
    platform: Simulator, running: GatewayProcess
) -> None:
    """`/ask` in a thread is answered there, in the placeholder "is thinking…"."""
    thread = await platform.thread(ROOM)
    asked = await platform.command(thread, "ask", "!echo hello")
    (answer,) = await platform.wait_for_messages(1, chat=thread)
    assert asked.response_type == 5
    assert asked.original is not None
    assert (answer.id, answer.thread, "hello" in answer.text) == (asked.original["id"], thread, True)


async def test_what_was_said_while_the_gateway_was_down_is_answered(
    platform: Simulator, running: GatewayProcess
) -> None:
    """The session is resumed with its commands; if it is over, the channel and private talk are read."""
    await platform.say(CHAT, "!echo before")
    await platform.wait_for_messages(1, chat=CHAT)
    await wait_until_delivered(running, 1)
    await running.kill()
    asked = await platform.command(ROOM, "status")
    await platform.say(CHAT, "!echo replayed")
    await running.start()
    await platform.wait_until(lambda: bool(asked.notices), seconds=60)
    _, replayed = await platform.wait_for_messages(2, chat=CHAT, seconds=60)
    assert "replayed" in replayed.text
    assert (platform.sessions.identified, platform.sessions.resumed) == (1, 1)
    await wait_until_delivered(running, 2)
    await running.kill()
    platform.sessions.clear()
    await platform.say(ROOM, f"<@{platform.world.bot['id']}> !echo patience")
    await platform.say(CHAT, "!echo virtue")
    await running.start()
    (answer,) = await platform.wait_for_messages(1, chat=ROOM)
    assert "patience" in answer.text
    *_, private = await platform.wait_for_messages(3, chat=CHAT)
    assert "virtue" in private.text


async def test_commands_are_executed_in_every_form(platform: Simulator, running: GatewayProcess) -> None:
    """`/status` is answered privately, `@bot status` in the room."""
    asked = await platform.command(ROOM, "status")
    await platform.wait_until(lambda: bool(asked.notices))
    assert platform.messages(ROOM) == []
    await platform.say(ROOM, f"<@{platform.world.bot['id']}> status")
    (answer,) = await platform.wait_for_messages(1, chat=ROOM)
    assert answer.text == asked.notices[0]


async def test_a_missing_permission_is_reported_to_the_operator(
    platform: Simulator, running: GatewayProcess
) -> None:
    """The delivery's error names the permission and what to do."""
    await platform.mute(ROOM)
    await platform.say(ROOM, f"<@{platform.world.bot['id']}> !echo hello")
    async with asyncio.timeout(20), running.http() as session:
        error = ""
        while not error:
            async with session.get("/deliveries") as answer:
                found = (await answer.json())["items"]
            error = next((str(one) for one in found if "Send Messages" in str(one)), "")
            await asyncio.sleep(0.05)
    assert "grant it" in error


async def test_a_kill_between_send_and_record_says_it_once(
    platform: Simulator, running: GatewayProcess
) -> None:
    """The message is sent again with its nonce, and Discord shows one."""
    await running.kill()
    await running.start(env={"DOVECOTE_FAULT_POINT": "delivery.after_send"})
    sessions = platform.sessions
    await platform.wait_until(lambda: sessions.identified + sessions.resumed > 1)
    await platform.say(CHAT, "!echo pigeon")
    assert await running.wait_for_exit() == -9
    await running.start()
    await wait_until_delivered(running, 1)
    sends = [fields for name, path, fields in platform.calls if name == "create" and str(CHAT) in path]
    assert len(sends) == 2
    assert len({fields["nonce"] for fields in sends}) == 1
    assert ["pigeon" in post.text for post in platform.messages(CHAT)] == [True]


async def test_a_posted_command_is_answered_in_its_place(platform: Simulator, tmp_path: Path) -> None:
    """Without a socket Discord posts a signed command, and the answer fills the deferred placeholder."""
    env = settings_of(platform, mode="interactions", public_key=platform.public_key)
    question = [{"name": "question", "type": 3, "value": "!echo hello"}]
    asked, raw = platform.create_interaction(ROOM, {"type": 2, "data": {"name": "ask", "options": question}})
    async with gateway(tmp_path / "data", env=env) as process:
        async with process.http() as session, session.get("/accounts/me/channels") as answer:
            (channel,) = (await answer.json())["items"]
        url = f"{process.url}/channels/{channel['id']}/inbound"
        assert await platform.post(url, {"type": 1}) == (200, {"type": 1})
        assert await platform.post(url, raw) == (200, {"type": 5})
        (post,) = await platform.wait_for_messages(1, chat=ROOM)
        order, raw = platform.create_interaction(ROOM, {"type": 2, "data": {"name": "status"}})
        status, reported = await platform.post(url, raw)
    assert (status, reported["type"], order.notices) == (200, 4, [reported["data"]["content"]])
    assert asked.original is not None
    assert (post.id, "hello" in post.text) == (asked.original["id"], True)


async def add_bot(process: GatewayProcess, platform: Simulator) -> None:
    """Add a second channel with another bot, and wait until it receives."""
    body = {"name": "second", "kind": "discord", "settings": platform.settings(allow=["*"])}
    async with process.http() as session, asyncio.timeout(60):
        async with session.post("/accounts/me/channels", json=body) as answer:
            assert answer.status == 201, await answer.text()
        await platform.wait_until(lambda: platform.sessions.identified == 1, seconds=60)


async def test_two_bots_live_in_one_gateway_through_kill_9(platform: Simulator, tmp_path: Path) -> None:
    """Each answers its own people with its own token, once, also what was said while the gateway was down."""
    async with (
        simulate(token=OTHER_TOKEN) as other,
        gateway(tmp_path / "data", env=settings_of(platform) | LOOPBACK) as process,
    ):
        await add_bot(process, other)
        both = {"east": platform, "west": other}
        for name, place in both.items():
            await place.say(CHAT, f"!echo first {name}")
        for place in both.values():
            await place.wait_for_messages(1, chat=CHAT, seconds=60)
        await wait_until_delivered(process, 2)
        await process.kill()
        for name, place in both.items():
            await place.say(CHAT, f"!echo missed {name}")
        await process.start()
        for place in both.values():
            await place.wait_for_messages(2, chat=CHAT, seconds=60)
        await wait_until_delivered(process, 4)
    for name, place in both.items():
        texts = [post.text for post in place.messages()]
        assert [f"{when} {name}" in text for when, text in zip(("first", "missed"), texts, strict=True)] == [
            True,
            True,
        ], texts
        assert place.sessions.resumed == 1
