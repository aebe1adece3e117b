"""A chat that accepts messages again, such as an archived channel, gets what it missed within a day."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.discord.simulator import Simulator as DiscordSimulator
from channels.discord.simulator import simulate as simulate_discord
from channels.github.simulator import simulate as simulate_github
from channels.slack.simulator import Simulator
from channels.slack.simulator.run import simulate
from channels.telegram.simulator import simulate as simulate_telegram
from gateway_process import GatewayProcess, channel_env, gateway
from turn_requests import poll_until

ROOM = "C0ROOM"
GROUP = -1001234567890
CHANNEL = 4004
OTHER_CHANNEL, OTHER_SERVER = 5005, 900_000_000_000_000_002
UNTIL_GO = "while [ ! -e go ]; do sleep 0.1; done; echo pigeon"


def is_refused(found: dict[str, Any]) -> bool:
    """Return whether a delivery was given up because its chat is dead, or waits for a permission."""
    return any(one["state"] in {"suppressed", "retrying"} for one in found["items"])


def create_calls(platform: DiscordSimulator, channel: int) -> int:
    """Return how many messages the bot has tried to send in a channel."""
    return sum(name == "create" and str(channel) in path for name, path, _ in platform.calls)


async def end_job(process: GatewayProcess) -> None:
    """End the job, and wait until its result is refused."""
    go = "/accounts/me/workspaces/default/files/go"
    async with process.http() as http, http.put(go, data=b"x") as answer:
        assert answer.status < 300, await answer.text()
    await poll_until(process, "/deliveries", is_refused)


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
            await end_job(process)
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


async def test_a_channel_that_adds_the_bot_again_gets_a_jobs_result(tmp_path: Path) -> None:
    """The message that the bot has joined is enough; the result comes in its thread."""
    async with job_of_a_closed_channel(tmp_path / "data", ROOM, "not_in_channel") as (platform, asked):
        await platform.invite(ROOM)
        await platform.wait_until(
            lambda: any(
                "exit code 0" in post.text and post.thread == asked for post in platform.messages(ROOM)
            ),
            seconds=30,
        )


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


async def test_an_answer_waits_no_longer_for_a_permission_that_a_message_proves(tmp_path: Path) -> None:
    """The bot may not write for a while; the next question gets the earlier answer and its own at once."""
    async with simulate_telegram() as platform:
        await platform.group(GROUP)
        async with gateway(tmp_path / "data", env=channel_env("telegram", platform.settings())) as process:
            await platform.restrict(GROUP, forbidden=["text messages"])
            await platform.say(GROUP, "@dovecote_bot !echo first")
            await poll_until(process, "/deliveries", is_refused)
            await platform.restrict(GROUP)
            await platform.say(GROUP, "@dovecote_bot !echo second")
            await platform.wait_for_messages(2, chat=GROUP, seconds=30)
            texts = [post.text for post in platform.messages(GROUP)]
    assert ["first" in texts[0], "second" in texts[1], len(texts)] == [True, True, 2], texts


async def test_a_topic_that_is_opened_again_gets_what_waits(tmp_path: Path) -> None:
    """An answer is refused while the topic is closed; the notice that it is open is enough."""
    async with simulate_telegram() as platform:
        await platform.group(GROUP, forum=True)
        topic = await platform.topic(GROUP)
        async with gateway(tmp_path / "data", env=channel_env("telegram", platform.settings())) as process:
            await platform.close_topic(GROUP, topic)
            await platform.say(GROUP, "@dovecote_bot !echo pigeon", thread=topic)
            await poll_until(process, "/deliveries", is_refused)
            await platform.reopen_topic(GROUP, topic)
            (answer,) = await platform.wait_for_messages(1, chat=GROUP, seconds=30)
    assert ("pigeon" in answer.text, answer.thread) == (True, topic)


async def test_a_discord_channel_whose_permissions_are_restored_gets_what_waits(tmp_path: Path) -> None:
    """Discord reports the change of the channel, and the refused answer comes without a new message."""
    async with simulate_discord() as platform:
        await platform.server_channel(CHANNEL)
        async with gateway(tmp_path / "data", env=channel_env("discord", platform.settings())) as process:
            await platform.mute(CHANNEL)
            await platform.say(CHANNEL, f"<@{platform.world.bot['id']}> !echo pigeon")
            await poll_until(process, "/deliveries", is_refused)
            await platform.allow(CHANNEL)
            (answer,) = await platform.wait_for_messages(1, chat=CHANNEL, seconds=30)
    assert "pigeon" in answer.text


async def test_a_discord_thread_that_is_unlocked_gets_what_waits(tmp_path: Path) -> None:
    """An answer is refused while only moderators can write; the change of the thread is enough."""
    async with simulate_discord() as platform:
        await platform.server_channel(CHANNEL)
        thread = await platform.thread(CHANNEL)
        async with gateway(tmp_path / "data", env=channel_env("discord", platform.settings())) as process:
            await platform.lock(thread)
            await platform.say(thread, f"<@{platform.world.bot['id']}> !echo pigeon")
            await poll_until(process, "/deliveries", is_refused)
            await platform.lock(thread, locked=False)
            (answer,) = await platform.wait_for_messages(1, chat=thread, seconds=30)
    assert "pigeon" in answer.text


async def test_a_discord_server_whose_role_is_changed_gets_what_waits(tmp_path: Path) -> None:
    """Its rooms get the refused answers without a new message; another server's are not tried again."""
    async with simulate_discord() as platform:
        bot = f"<@{platform.world.bot['id']}>"
        await platform.server_channel(CHANNEL)
        await platform.server_channel(OTHER_CHANNEL, guild=OTHER_SERVER)
        async with gateway(tmp_path / "data", env=channel_env("discord", platform.settings())) as process:
            for channel in (CHANNEL, OTHER_CHANNEL):
                await platform.mute(channel)
                await platform.say(channel, f"{bot} !echo pigeon")
            await platform.say(CHANNEL, f"{bot} !echo dove")
            await poll_until(process, "/deliveries?state=retrying", lambda found: len(found["items"]) == 2)
            before = create_calls(platform, OTHER_CHANNEL)
            await platform.change_role(CHANNEL, color=7)
            await platform.allow_server(CHANNEL)
            answers = await platform.wait_for_messages(2, chat=CHANNEL, seconds=30)
            assert create_calls(platform, OTHER_CHANNEL) == before
            problems = [line for line in process.log if "delivery.operator_required" in line]
    assert ["pigeon" in answers[0].text, "dove" in answers[1].text] == [True, True]
    assert len(problems) == 2, "one for each room, however often it is tried"


async def test_a_discord_server_that_adds_the_bot_again_gets_a_jobs_result(tmp_path: Path) -> None:
    """The channel in which the bot was before gets what it missed, without a new message."""
    async with simulate_discord() as platform:
        await platform.server_channel(CHANNEL)
        async with gateway(tmp_path / "data", env=channel_env("discord", platform.settings())) as process:
            await platform.say(CHANNEL, f"<@{platform.world.bot['id']}> !&{UNTIL_GO}")
            await poll_until(process, "/turns?state=completed", lambda found: bool(found["items"]))
            await platform.wait_for_messages(1, chat=CHANNEL, seconds=30)
            await platform.kick(CHANNEL)
            await end_job(process)
            await platform.readmit(CHANNEL)
            *_, result = await platform.wait_for_messages(2, chat=CHANNEL, seconds=30)
    assert "exit code 0" in result.text


async def test_a_group_that_adds_the_bot_again_gets_a_jobs_result(tmp_path: Path) -> None:
    """Telegram reports that the bot may write; the result comes without a new message of a person."""
    async with simulate_telegram() as platform:
        await platform.group(GROUP)
        async with gateway(tmp_path / "data", env=channel_env("telegram", platform.settings())) as process:
            await platform.say(GROUP, f"@dovecote_bot !&{UNTIL_GO}")
            await poll_until(process, "/turns?state=completed", lambda found: bool(found["items"]))
            await platform.wait_until(lambda: bool(platform.messages(GROUP)), seconds=30)
            await platform.kick(GROUP)
            await end_job(process)
            await platform.readmit(GROUP)
            await platform.wait_until(
                lambda: any("exit code 0" in post.text for post in platform.messages(GROUP)), seconds=30
            )


async def test_an_unlocked_issue_of_github_gets_a_jobs_result(tmp_path: Path) -> None:
    """It arrives once the issue is unlocked; until then the other threads go on."""
    async with simulate_github() as platform:
        env = channel_env("github", platform.settings(groups="mention"))
        async with gateway(tmp_path / "data", env=env) as process:
            await platform.say("", f"@dovecote !&{UNTIL_GO}")
            await platform.wait_until(lambda: bool(platform.messages()), seconds=30)
            await platform.lock(1)
            await end_job(process)
            await platform.comment("issue_comment", 2, "@dovecote !echo other")
            await platform.wait_until(lambda: "other" in platform.messages()[-1].text, seconds=30)
            await platform.lock(1, locked=False)
            await platform.wait_until(lambda: "exit code 0" in platform.messages()[-1].text, seconds=30)
    assert [one.thread for one in platform.messages()] == ["1", "2", "1"]
