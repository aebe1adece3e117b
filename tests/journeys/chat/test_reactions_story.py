"""The agent reacts to a message, speaks its answer, and gets a person's reaction, on Telegram."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import aiohttp

from api_server import ApiClient
from channels.telegram.simulator import simulate
from gateway_process import channel_env, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text
from turn_requests import poll_until

PRIVATE = 4711
SPEAK = "import sys; sys.stdout.buffer.write(b'OggS' + sys.stdin.buffer.read())"


def script(body: dict[str, Any]) -> ScriptedTurn:
    """React and answer; say nothing about a reaction."""
    asked = last_text(body)
    if "reaction to the quoted message" in asked:
        return ScriptedTurn(text="HEARTBEAT_OK")
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text="That is hot.")
    if "react" in asked:
        return ScriptedTurn(calls=[ToolCall(name="react", args={"emoji": "fire"})])
    return ScriptedTurn(text=f"I heard: {asked}")


async def test_reactions_go_both_ways_and_the_answer_is_spoken_once(tmp_path: Path) -> None:
    """A kill repeats no delivered answer; the status at the end does not replace what the agent added."""
    async with simulate() as platform, OpenAIServer(script) as model, aiohttp.ClientSession() as session:
        env = {
            **channel_env("telegram", platform.settings(allow=["*"], reactions=True)),
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "DOVECOTE_SPEECH__COMMAND": f'["{sys.executable}", "-c", "{SPEAK}"]',
            "DOVECOTE_SPEECH__FORMAT": "opus",
        }
        async with gateway(tmp_path / "data", env=env) as process:
            client = ApiClient(session=session, url=process.url, key=process.key)
            wanted = await client.call(
                "PATCH", "/accounts/me/agents/default", {"config": {"reactions": True}}
            )
            assert wanted.status == 200, wanted.body
            asked = await platform.say(PRIVATE, "please react")
            text, voice = await platform.wait_for_messages(2, chat=PRIVATE)
            question, fire = platform.world.posts[PRIVATE, asked], [{"type": "emoji", "emoji": "🔥"}]
            await platform.wait_until(lambda: question.raw.get("reactions") == fire, seconds=60)
            assert (text.text, "voice" in voice.raw) == ("That is hot.", True)
            # The reaction, the text and the voice; one that is not recorded may be sent again (G2).
            await poll_until(process, "/deliveries?state=delivered", lambda found: len(found["items"]) == 3)
            await process.kill()
            await process.start()
            await platform.react(PRIVATE, text.id, "👍")
            await platform.say(PRIVATE, "and now?")
            await platform.wait_for_messages(4, chat=PRIVATE)
            assert question.raw["reactions"] == fire
        assert [one.text for one in platform.messages(PRIVATE) if one.text][-1] == "I heard: and now?"
        assert len(platform.messages(PRIVATE)) == 4
        quoting = [last_text(body) for body in model.bodies if "reaction to the quoted" in last_text(body)]
        assert ["That is hot." in one and "👍" in one for one in quoting] == [True]
