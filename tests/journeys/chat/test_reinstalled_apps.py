"""What waits for an app's installation is sent as soon as the app is installed or permitted again."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.github.simulator import simulate as simulate_github
from channels.slack.simulator.run import simulate as simulate_slack
from gateway_process import channel_env, gateway
from slack_installing import install, wait_for_answer
from turn_requests import poll_until

UNTIL_GO = "while [ ! -e go ]; do sleep 0.1; done; echo pigeon"
GO = "/accounts/me/workspaces/default/files/go"
EAST, WEST = "C0EAST", "C0WEST"


async def test_a_slack_workspace_that_installs_the_app_again_gets_what_waits(tmp_path: Path) -> None:
    """Its token was revoked; the answer comes with the new one, and no other workspace is asked again."""
    async with simulate_slack() as platform:
        for room in (EAST, WEST):
            platform.world.room(room).team = f"T0{room[2:]}"
        async with gateway(tmp_path / "data", env=channel_env("slack", platform.app_settings())) as process:
            for team in ("T0EAST", "T0WEST"):
                await install(platform, process, team)
                platform.server.installations.revoke(team)
            for room in (EAST, WEST):
                await platform.say(room, "<@U0BOT> !echo pigeon")
            await poll_until(process, "/deliveries?state=retrying", lambda found: len(found["items"]) == 2)
            before = len(platform.calls)
            await install(platform, process, "T0EAST")
            await wait_for_answer(platform, EAST, "pigeon")
            asked = [given.get("channel") for _method, given in platform.calls[before:]]
    assert WEST not in asked


async def test_a_github_installation_that_is_unsuspended_gets_what_waits(tmp_path: Path) -> None:
    """GitHub reports it without a repository, and the refused comment is made without a new one."""
    async with simulate_github() as platform:
        platform.world.suspended = True
        settings = platform.settings(mode="polling", poll_seconds=0.1, groups="mention")
        async with gateway(tmp_path / "data", env=channel_env("github", settings)) as process:
            await platform.say("", "@dovecote !echo pigeon")
            await poll_until(process, "/deliveries?state=retrying", lambda found: bool(found["items"]))
            platform.world.suspended = False
            await platform.change_installation("unsuspend")
            await platform.wait_until(lambda: bool(platform.messages()))
    assert "pigeon" in platform.messages()[0].text


@pytest.mark.parametrize(
    ("event", "action"), [("installation", "created"), ("installation_repositories", "added")]
)
async def test_a_repository_that_gets_the_app_back_gets_a_jobs_result(
    tmp_path: Path, event: str, action: str
) -> None:
    """The job ended while the app was removed; its result is in the issue without a new comment."""
    async with simulate_github() as platform:
        settings = platform.settings(mode="polling", poll_seconds=0.1, groups="mention")
        async with gateway(tmp_path / "data", env=channel_env("github", settings)) as process:
            await platform.say("", f"@dovecote !&{UNTIL_GO}")
            await poll_until(process, "/turns?state=completed", lambda found: bool(found["items"]))
            await platform.wait_until(lambda: bool(platform.messages()))
            await platform.uninstall()
            async with process.http() as http, http.put(GO, data=b"x") as answer:
                assert answer.status < 300, await answer.text()
            await poll_until(process, "/deliveries?state=suppressed", lambda found: bool(found["items"]))
            await platform.change_installation(action, event=event)
            await platform.wait_until(lambda: len(platform.messages()) > 1)
    assert "exit code 0" in platform.messages()[-1].text
