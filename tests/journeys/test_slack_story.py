"""A person on Slack: command, answer, job, kill -9, the result in the same thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.slack.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env, gateway

ROOM = "C0ROOM"


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Slack on loopback."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def running(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with one Slack channel that lets anyone in."""
    env = channel_env("slack", platform.settings(allow=["*"]))
    async with gateway(tmp_path / "data", env=env) as process:
        yield process


async def until_delivered(process: GatewayProcess, count: int) -> None:
    """Wait until so many deliveries are recorded as delivered."""
    async with asyncio.timeout(30), process.http() as session:
        while True:
            async with session.get("/deliveries") as answer:
                found = (await answer.json())["items"]
            if sum(one["state"] == "delivered" for one in found) >= count:
                return


async def test_a_mention_is_answered_once_in_its_thread(platform: Simulator, running: GatewayProcess) -> None:
    """A mention arrives twice and is answered once, in the thread that it opens."""
    asked = await platform.say(ROOM, "<@U0BOT> !echo first")
    await platform.wait_for_messages(1, room=ROOM)
    await platform.say(ROOM, "<@U0BOT> !echo second", thread=asked)
    one, two = await platform.wait_for_messages(2, room=ROOM)
    assert ("first" in one.text, "second" in two.text) == (True, True)
    assert (one.thread, two.thread) == (asked, asked)


async def test_a_slash_command_is_answered(platform: Simulator, running: GatewayProcess) -> None:
    """`/dovecote help` tells the commands."""
    await platform.slash(ROOM, "help")
    (answer,) = await platform.wait_for_messages(1, room=ROOM)
    assert "/status" in answer.text


async def test_a_job_started_in_a_thread_comes_home_through_kill_9(
    platform: Simulator, running: GatewayProcess
) -> None:
    """The result of a job is said in the thread that asked for it, although the gateway was killed."""
    root = await platform.say(ROOM, "what a day")
    await platform.say(ROOM, "<@U0BOT> !&sleep 2; echo pigeon", thread=root)
    (started,) = await platform.wait_for_messages(1, room=ROOM)
    assert "Started job" in started.text
    await until_delivered(running, 1)
    await running.kill()
    await running.start()
    said = await platform.wait_for_messages(2, room=ROOM)
    assert "pigeon" in said[-1].text
    assert {post.thread for post in said} == {root}
