"""Questions of a group about an earlier file: in its thread at Slack, in a reply at Telegram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bot_messages import wait_for_bot_message
from channels.slack.simulator.run import simulate as simulate_slack
from channels.telegram.simulator import simulate as simulate_telegram
from gateway_process import channel_env, gateway
from openai_server import OpenAIServer, ScriptedTurn, last_text

ROOM = "C0ROOM"
GROUP = -1_000_000_004_712
QUESTION = "!cat inbox/report.txt"


async def test_a_thread_below_a_file_is_about_the_file(tmp_path: Path) -> None:
    """The agent has the file that opened the thread, although that message was not for the bot."""
    async with simulate_slack() as platform:
        platform.world.trigger_seconds = platform.poster.timeout = 60.0
        async with gateway(tmp_path / "data", env=channel_env("slack", platform.settings())):
            file = await platform.send_file(ROOM, b"pigeon", name="report.txt", media_type="text/plain")
            await platform.say(ROOM, f"<@U0BOT> {QUESTION}", thread=file)
            answer = await wait_for_bot_message(platform, "pigeon", room=ROOM)
    assert answer.thread == file


async def test_an_earlier_file_that_is_too_large_causes_no_notice(tmp_path: Path) -> None:
    """A file that the person did not send or name is not reported to the thread."""
    async with simulate_slack() as platform:
        platform.world.trigger_seconds = platform.poster.timeout = 60.0
        env = {**channel_env("slack", platform.settings()), "DOVECOTE_FILES__ATTACHMENT_BYTES": "1000"}
        async with gateway(tmp_path / "data", env=env):
            file = await platform.send_file(ROOM, b"x" * 2000, name="report.txt", media_type="text/plain")
            await platform.say(ROOM, "<@U0BOT> !echo pigeon", thread=file)
            await wait_for_bot_message(platform, "pigeon", room=ROOM)
            texts = [post.text for post in platform.messages(ROOM)]
    assert not [text for text in texts if "could not receive" in text]


async def test_a_thread_below_the_alert_of_another_app_is_about_it(tmp_path: Path) -> None:
    """The agent has the file of the alert; the alert itself starts no turn, although it names the bot."""
    async with simulate_slack() as platform:
        platform.world.trigger_seconds = platform.poster.timeout = 60.0
        async with gateway(tmp_path / "data", env=channel_env("slack", platform.settings(allow=["*"]))):
            file = {"name": "report.txt", "media_type": "text/plain"}
            await platform.send_file("C0OTHER", b"pigeon", **file)
            files = list(platform.world.files.values())
            content = {
                "subtype": "bot_message",
                "bot_id": "B0MONITOR",
                "attachments": [{"title": "Disk full"}],
            }
            alert = platform.world.post(
                ROOM, "U0MONITOR", {"text": "<@U0BOT> !date", "files": files, **content}
            )
            await platform.send_message_event(alert)
            await platform.say(ROOM, f"<@U0BOT> {QUESTION}", thread=alert.ts)
            answer = await wait_for_bot_message(platform, "pigeon", room=ROOM)
    assert [post.text for post in platform.messages(ROOM)] == [answer.text]
    assert answer.thread == alert.ts


async def test_an_alert_that_its_app_has_changed_is_known_as_it_is_now(tmp_path: Path) -> None:
    """Apps change their blocks and attachments without the mark of an edit; the agent gets the latest."""
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> ScriptedTurn:
        asked.append(last_text(body))
        return ScriptedTurn(text="seen", pieces=1)

    async with simulate_slack() as platform, OpenAIServer(answer) as model:
        platform.world.trigger_seconds = platform.poster.timeout = 60.0
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        env |= {"OPENAI_API_KEY": "loopback", **channel_env("slack", platform.settings(allow=["*"]))}
        async with gateway(tmp_path / "data", env=env):
            content = {"subtype": "bot_message", "bot_id": "B0MONITOR", "text": ""}
            firing, resolved = ([{"title": one}] for one in ("Firing: disk", "Resolved: disk"))
            alert = platform.world.post(ROOM, "U0MONITOR", {**content, "attachments": firing})
            await platform.send_message_event(alert)
            await platform.update(ROOM, alert.ts, attachments=resolved)
            await platform.say(ROOM, "<@U0BOT> is it over?", thread=alert.ts)
            await wait_for_bot_message(platform, "seen", room=ROOM)
    assert ("Resolved: disk" in asked[0], "Firing: disk" in asked[0]) == (True, False), asked


async def test_a_reply_to_a_file_is_about_the_file(tmp_path: Path) -> None:
    """The agent has the file of the message that is replied to."""
    async with simulate_telegram() as platform:
        await platform.group(GROUP)
        async with gateway(tmp_path / "data", env=channel_env("telegram", platform.settings(allow=["*"]))):
            file = await platform.send_file(GROUP, b"pigeon", name="report.txt", user=7)
            await platform.say(GROUP, f"@dovecote_bot {QUESTION}", user=8, reply_to=file)
            await wait_for_bot_message(platform, "pigeon", room=GROUP)
