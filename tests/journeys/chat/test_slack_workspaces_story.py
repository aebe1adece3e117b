"""Two Slack workspaces in one gateway: installed in a browser, answered, killed, and caught up."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from channels.slack.simulator.run import simulate
from channels.slack.thread_locations import RECEIVED_UNTIL
from gateway_process import GatewayProcess, channel_env, gateway
from slack_installing import install, wait_for_answer

ROOMS = {"C0EAST": "T0EAST", "C0WEST": "T0WEST"}
HOUR = 3600.0


async def list_installations(process: GatewayProcess) -> list[str]:
    """Return the ids of the workspaces that have the app."""
    async with (
        process.http() as session,
        session.get("/accounts/me/channels/slack/installations") as answer,
    ):
        return [one["id"] for one in (await answer.json())["items"]]


def pretend_that_an_hour_passed(data: Path) -> None:
    """Move the time until which the gateway received."""
    with closing(sqlite3.connect(data / "dovecote.db")) as connection, connection:
        changed = connection.execute(
            "UPDATE channel_notes SET note = ? WHERE name = ?", (f"{time.time() - HOUR:.0f}", RECEIVED_UNTIL)
        )
        assert changed.rowcount == 1


async def test_installations_are_listed_where_the_channel_is_not_connected(tmp_path: Path) -> None:
    """A process without the roles of channels lists them; a bot of one workspace has none, and a reason."""
    data = tmp_path / "data"
    async with simulate() as platform:
        settings = channel_env("slack", platform.app_settings())
        async with gateway(data, env=settings) as process:
            await install(platform, process, "T0EAST")
        async with gateway(data, env={**settings, "DOVECOTE_ROLES": "reaper"}) as process:
            assert await list_installations(process) == ["T0EAST"]
        settings = channel_env("slack", platform.settings())
    async with (
        gateway(data, env=settings) as process,
        process.http() as session,
        session.get("/accounts/me/channels/slack/installations") as answer,
    ):
        assert (answer.status, "bot_token" in (await answer.json())["detail"]) == (409, True)


async def test_two_workspaces_live_in_one_gateway_through_kill_9(tmp_path: Path) -> None:
    """Each is answered with its own token; what was said while the gateway was down is answered once."""
    data = tmp_path / "data"
    async with simulate() as platform:
        for room, team in ROOMS.items():
            platform.world.room(room).team = team
        async with gateway(data, env=channel_env("slack", platform.app_settings())) as process:
            for room, team in ROOMS.items():
                await install(platform, process, team)
                await platform.say(room, f"<@U0BOT> !echo first-{team}")
            for room, team in ROOMS.items():
                await wait_for_answer(platform, room, f"first-{team}")
            assert await list_installations(process) == sorted(ROOMS.values())
            await process.kill()
            pretend_that_an_hour_passed(data)
            for room, team in ROOMS.items():
                platform.world.post(room, "U0ADA", {"text": f"<@U0BOT> !echo missed-{team}"})
            await process.start()
            for room, team in ROOMS.items():
                await wait_for_answer(platform, room, f"missed-{team}")
                await platform.say(room, f"<@U0BOT> !echo last-{team}")
                await wait_for_answer(platform, room, f"last-{team}")
        assert b"xoxb-" not in b"".join(path.read_bytes() for path in data.glob("dovecote.db*"))
    for room, team in ROOMS.items():
        said = [post.text for post in platform.messages(room)]
        for name in ("first", "missed", "last"):
            assert sum(f"{name}-{team}" in text for text in said) == 1, said
