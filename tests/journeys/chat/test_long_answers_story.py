"""Long answers on a platform that takes no files from bots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

from bot_messages import wait_for_bot_message
from channels.github.simulator import simulate as simulate_github
from channels.pancake.simulator import simulate as simulate_pancake
from channels.pancake.simulator.simulator import COMMENTS
from channels.zalo.simulator import simulate
from inbox_stories import open_story
from openai_server import ScriptedTurn

LINES = [f"Line {number} of the answer, with some further words." for number in range(200)]


def answer_at_length(_body: dict[str, Any]) -> ScriptedTurn:
    """Answer with a text of five messages."""
    return ScriptedTurn(text="\n\n".join(LINES))


async def test_a_long_answer_arrives_whole_where_no_file_can_be_sent(tmp_path: Path) -> None:
    """Every line is sent, in order, in as many messages as it needs."""
    async with (
        simulate() as platform,
        open_story(platform, "zalo", platform.settings(), tmp_path / "data", answer_at_length),
    ):
        await platform.say("", "tell me everything")
        await wait_for_bot_message(platform, LINES[-1])
    said = "\n".join(one.text for one in platform.messages())
    assert [line for line in said.split("\n") if line] == LINES


async def test_a_long_answer_below_a_comment_has_a_link_to_the_whole(tmp_path: Path) -> None:
    """Comments take no files; the link opens the text, and no other message's."""
    async with simulate_pancake() as platform:
        settings = platform.settings(page_name="The Loft")
        async with open_story(platform, "pancake", settings, tmp_path / "data", answer_at_length):
            await platform.write(COMMENTS, "@The Loft tell me everything")
            said = await wait_for_bot_message(platform, "comments take no files")
            link = said.text.partition("some days: ")[2].partition("\n")[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(link) as answer:
                    assert (answer.status, answer.content_type) == (200, "text/plain")
                    assert [line for line in (await answer.text()).split("\n") if line] == LINES
                async with session.get(link.replace("/msg_", "/msg_0")) as answer:
                    assert answer.status == 404
    assert LINES[-1] in said.text


async def test_an_answer_that_is_too_long_for_an_event_loses_nothing(tmp_path: Path) -> None:
    """Of 30,000 letters that are no ASCII an event has the beginning; the issue gets the end and a link."""
    text = "".join(f"Строка {number} о голубях и зёрнах.\n\n" for number in range(1000))
    async with simulate_github() as platform:
        settings = platform.settings(groups="mention")
        model = [ScriptedTurn(text=text, pieces=1)]
        async with open_story(platform, "github", settings, tmp_path / "data", model):
            await platform.say("", "@dovecote tell me everything")
            said = await wait_for_bot_message(platform, "It ends with")
            link = said.text.partition("some days: ")[2].partition("\n")[0]
            async with aiohttp.ClientSession() as session, session.get(link) as answer:
                assert (await answer.text()).split() == text.split()
    first, _last = platform.messages()
    assert first.text.startswith("Строка 0 о голубях")
    assert first.text.endswith("…")
    assert "Строка 999 о голубях" in said.text
