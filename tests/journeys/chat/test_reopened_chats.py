"""A chat that accepts messages again, such as an archived channel, gets what it missed within a day."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.slack.simulator import Simulator
from channels.slack.simulator.run import simulate
from gateway_process import channel_env, gateway
from turn_requests import poll_until

ROOM = "C0ROOM"
UNTIL_GO = "while [ ! -e go ]; do sleep 0.1; done; echo pigeon"


def has_suppressed(found: dict[str, Any]) -> bool:
    """Return whether a delivery was given up because its chat is dead."""
    return any(one["state"] == "suppressed" for one in found["items"])


@asynccontextmanager
async def job_of_a_closed_channel(
    data: Path, room: str, refusal: str
) -> AsyncIterator[tuple[Simulator, str]]:
    """Run a gateway whose job ends once Slack refuses its channel; yields the thread that waits for it."""
    async with simulate() as platform:
        platform.world.trigger_seconds = platform.poster.timeout = 60.0
        async with gateway(data, env=channel_env("slack", platform.settings())) as process:
            asked = await platform.say(room, f"<@U0BOT> !&{UNTIL_GO}")
            await platform.wait_until(lambda: bool(platform.messages(room)), seconds=30)
            await poll_until(process, "/turns?state=completed", lambda found: bool(found["items"]))
            await platform.kick(room, refusal=refusal)
            go = "/accounts/me/workspaces/default/files/go"
            async with process.http() as http, http.put(go, data=b"x") as answer:
                assert answer.status < 300, await answer.text()
            await poll_until(process, "/deliveries", has_suppressed)
            yield platform, asked


async def test_an_archived_channel_gets_a_jobs_result_after_it_is_opened(tmp_path: Path) -> None:
    """The job ends while the channel is archived; its result comes once, before the next answer."""
    async with job_of_a_closed_channel(tmp_path / "data", ROOM, "is_archived") as (platform, asked):
        await platform.kick(ROOM, refusal="")
        await platform.say(ROOM, "<@U0BOT> !echo open again")
        await platform.wait_until(
            lambda: any("open again" in post.text for post in platform.messages(ROOM)), seconds=30
        )
        posts = platform.messages(ROOM)
        results = [post for post in posts if "exit code 0" in post.text]
        assert [post.thread for post in results] == [asked], [post.text for post in posts]
        assert "open again" in posts[-1].text


@pytest.mark.parametrize("room", [ROOM, "G0ROOM"])
async def test_an_opened_channel_gets_a_jobs_result_without_a_new_message(tmp_path: Path, room: str) -> None:
    """The message that the channel is no longer archived is enough; the result comes in its thread."""
    async with job_of_a_closed_channel(tmp_path / "data", room, "is_archived") as (platform, asked):
        before = len(platform.messages(room))
        await platform.unarchive(room)
        await platform.wait_for_messages(before + 1, room=room, seconds=30)
        *_, result = platform.messages(room)
        assert ("exit code 0" in result.text, result.thread) == (True, asked)


async def test_a_channel_with_a_new_id_gets_what_its_old_id_was_refused(tmp_path: Path) -> None:
    """Slack refuses the old id before it reports the new one; the result is then posted to that one."""
    async with job_of_a_closed_channel(tmp_path / "data", "G0OLD", "channel_not_found") as (platform, asked):
        await platform.change_id("G0OLD", "C0NEW")
        await platform.wait_until(
            lambda: any(
                "exit code 0" in post.text and post.thread == asked for post in platform.messages("C0NEW")
            ),
            seconds=30,
        )
