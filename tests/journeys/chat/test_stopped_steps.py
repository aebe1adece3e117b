"""A gateway that stops while a command runs makes its last calls before it closes the bots."""

from __future__ import annotations

from pathlib import Path

from channels.discord.simulator import simulate
from gateway_process import channel_env, gateway

CHAT = 77


async def test_the_line_about_a_running_command_is_removed_at_the_stop(tmp_path: Path) -> None:
    """The chat does not show a command as running that no longer does, and the log has no error."""
    async with simulate() as platform:
        env = channel_env("discord", platform.settings(allow=["*"])) | {"DOVECOTE_DRAIN_TIMEOUT": "1"}
        async with gateway(tmp_path / "data", env=env) as process:
            await platform.say(CHAT, "/verbose on")
            await platform.wait_for_messages(1, chat=CHAT, seconds=30)
            await platform.say(CHAT, "!sleep 60")
            await platform.wait_until(
                lambda: any("sleep 60" in post.text for post in platform.messages(CHAT)), seconds=30
            )
        errors = [line for line in process.log if "[error" in line]
        shown = [post.text for post in platform.messages(CHAT)]
    assert errors == []
    assert not any("sleep 60" in text for text in shown), shown
