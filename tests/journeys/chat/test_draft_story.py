"""A reply that grows in a Telegram chat, through kill -9, and is one message in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bot_messages import wait_until_draft_recorded
from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env, gateway
from openai_server import OpenAIServer, ScriptedTurn

CHAT = 4711
GROUP = -4711
"""Where drafts are messages; in a private chat Telegram shows previews that fade."""

PARTIAL_STORY = "Once upon a time"
FULL_STORY = "Once upon a time there was a dove."


@asynccontextmanager
async def open_gateway(
    data: Path, script: Sequence[ScriptedTurn]
) -> AsyncIterator[tuple[GatewayProcess, Simulator]]:
    """Run a gateway on a simulated Telegram whose model follows a script."""
    async with simulate() as platform, OpenAIServer(script) as model:
        env = channel_env("telegram", platform.settings(allow=["*"], groups="always"))
        env |= {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "OPENAI_API_KEY": "loopback",
        }
        async with gateway(data, env=env) as process:
            yield process, platform


def visible_texts(platform: Simulator, chat: int = CHAT) -> list[str]:
    """Return what a person reads of the bot."""
    return [post.text for post in platform.messages(chat)]


async def test_a_growing_reply_outlives_the_gateway_as_one_message(tmp_path: Path) -> None:
    """A draft shows, the gateway is killed in mid-sentence, and later the same message is finished."""
    script = [ScriptedTurn(text=PARTIAL_STORY, fault="stall"), ScriptedTurn(text=FULL_STORY)]
    async with open_gateway(tmp_path / "data", script) as (process, platform):
        await platform.say(GROUP, "tell me a story", user=7)
        await platform.wait_for_messages(1, chat=GROUP, seconds=30)
        await wait_until_draft_recorded(process.data)
        await process.kill()
        await process.start()
        await platform.wait_until(lambda: visible_texts(platform, GROUP) == [FULL_STORY], seconds=30)


async def test_a_stopped_reply_is_not_left_unfinished(tmp_path: Path) -> None:
    """The text so far stays when the turn is stopped, with a note that it was stopped."""
    async with open_gateway(tmp_path / "data", [ScriptedTurn(text=PARTIAL_STORY, fault="stall")]) as (
        process,
        platform,
    ):
        await platform.say(GROUP, "tell me a story", user=7)
        await platform.wait_for_messages(1, chat=GROUP, seconds=30)
        await wait_until_draft_recorded(process.data)
        await platform.say(GROUP, "/stop", user=7)
        await platform.wait_until(lambda: "Stopped." in " ".join(visible_texts(platform, GROUP)), seconds=30)
        first, *_, last = visible_texts(platform, GROUP)
        assert (first, last) == (PARTIAL_STORY, "Stopped.")


async def test_a_preview_gives_way_to_one_message(tmp_path: Path) -> None:
    """In a private chat the reply is previewed while it grows, and sent once, as a whole."""
    script = [ScriptedTurn(text=PARTIAL_STORY, fault="stall"), ScriptedTurn(text=FULL_STORY)]
    async with open_gateway(tmp_path / "data", script) as (process, platform):
        await platform.say(CHAT, "tell me a story")
        calls = platform.calls
        await platform.wait_until(lambda: "sendMessageDraft" in [name for name, _ in calls], seconds=30)
        await process.kill()
        await process.start()
        await platform.wait_until(lambda: visible_texts(platform) == [FULL_STORY], seconds=30)
        assert [name for name, _ in calls].count("sendMessage") == 1


async def test_a_quick_reply_is_sent_once_and_never_edited(tmp_path: Path) -> None:
    """A reply that is complete at once has no draft: one send, no edit."""
    async with open_gateway(tmp_path / "data", [ScriptedTurn(text=FULL_STORY)]) as (_, platform):
        await platform.say(CHAT, "quick")
        await platform.wait_until(lambda: visible_texts(platform) == [FULL_STORY], seconds=30)
        assert [method for method, _ in platform.calls].count("editMessageText") == 0
