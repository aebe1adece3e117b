"""Long answers on a platform that takes no files from bots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from channels.zalo.simulator import simulate
from inbox_stories import open_story, wait_for_text
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
        await wait_for_text(platform, LINES[-1])
    said = "\n".join(one.text for one in platform.messages())
    assert [line for line in said.split("\n") if line] == LINES
