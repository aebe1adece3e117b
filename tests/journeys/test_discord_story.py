"""A person on Discord: question, answer, job, kill -9, the result in the same channel, each said once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.discord.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env, gateway

CHAT = 4711
ROOM = 4004


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


async def until_delivered(process: GatewayProcess, count: int) -> None:
    """Wait until so many deliveries are recorded as delivered."""
    async with asyncio.timeout(30), process.http() as session:
        while True:
            async with session.get("/deliveries") as answer:
                found = (await answer.json())["items"]
            if sum(one["state"] == "delivered" for one in found) >= count:
                return


async def test_what_is_said_in_private_is_answered(platform: Simulator, running: GatewayProcess) -> None:
    """What a person sends is answered in the same conversation."""
    await platform.say(CHAT, "!echo hello")
    (answer,) = await platform.wait_for_messages(1, chat=CHAT)
    assert "hello" in answer.text


async def test_a_slash_command_is_answered_in_its_thread(
    platform: Simulator, running: GatewayProcess
) -> None:
    """`/ask` in a thread is answered there, in the place that said "is thinking…"."""
    thread = await platform.thread(ROOM)
    asked = await platform.command(thread, "ask", "!echo hello")
    (answer,) = await platform.wait_for_messages(1, chat=thread)
    assert asked.reaction == 5
    assert asked.original is not None
    assert (answer.id, answer.thread, "hello" in answer.text) == (asked.original["id"], thread, True)


async def test_a_job_comes_home_through_kill_9(platform: Simulator, running: GatewayProcess) -> None:
    """The result of a job is said in the channel that asked for it, once, although the gateway was killed."""
    await platform.say(ROOM, f"<@{platform.world.bot['id']}> !&sleep 2; echo pigeon")
    (started,) = await platform.wait_for_messages(1, chat=ROOM)
    assert "Started job" in started.text
    await until_delivered(running, 1)
    await running.kill()
    await running.start()
    said = await platform.wait_for_messages(2, chat=ROOM)
    await until_delivered(running, 2)
    assert ["pigeon" in post.text for post in platform.messages(ROOM)] == [False, True]
    assert "pigeon" in said[-1].text


async def test_what_was_said_while_the_gateway_was_down_is_answered(
    platform: Simulator, running: GatewayProcess
) -> None:
    """The channel is read when the gateway is back."""
    await running.kill()
    platform.sessions.forget()
    await platform.say(ROOM, f"<@{platform.world.bot['id']}> !echo patience")
    await running.start()
    (answer,) = await platform.wait_for_messages(1, chat=ROOM)
    assert "patience" in answer.text


async def test_a_kill_between_send_and_record_says_it_once(
    platform: Simulator, running: GatewayProcess
) -> None:
    """The message is sent again with its nonce, and Discord shows one."""
    await running.kill()
    await running.start(env={"DOVECOTE_FAULT": "delivery.after_send"})
    await platform.wait_until(lambda: platform.sessions.identified > 1)
    await platform.say(CHAT, "!echo pigeon")
    assert await running.ended() == -9
    await running.start()
    await until_delivered(running, 1)
    sends = [fields for name, path, fields in platform.calls if name == "create" and str(CHAT) in path]
    assert len(sends) == 2
    assert len({fields["nonce"] for fields in sends}) == 1
    assert ["pigeon" in post.text for post in platform.messages(CHAT)] == [True]


async def test_a_posted_command_is_answered_in_its_place(platform: Simulator, tmp_path: Path) -> None:
    """Without a socket: Discord posts a signed command, it is deferred, and the answer takes its place."""
    env = settings_of(platform, mode="interactions", public_key=platform.public_key)
    question = [{"name": "question", "type": 3, "value": "!echo hello"}]
    asked, raw = platform.interaction(ROOM, {"type": 2, "data": {"name": "ask", "options": question}})
    async with gateway(tmp_path / "data", env=env) as process:
        async with process.http() as session, session.get("/accounts/me/channels") as answer:
            (channel,) = (await answer.json())["items"]
        url = f"{process.url}/channels/{channel['id']}/inbound"
        assert await platform.post(url, {"type": 1}) == (200, {"type": 1})
        assert await platform.post(url, raw) == (200, {"type": 5})
        (said,) = await platform.wait_for_messages(1, chat=ROOM)
    assert asked.original is not None
    assert (said.id, "hello" in said.text) == (asked.original["id"], True)
