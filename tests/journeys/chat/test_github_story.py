"""A person on GitHub: an answer, an approval by comment, a job, kill -9, and its result in the issue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bot_messages import wait_for_bot_message, wait_until_settled
from channels.github.simulator import Simulator as GitHub
from channels.github.simulator import simulate
from inbox_stories import kill_and_restart, open_story
from openai_server import ScriptedTurn, last_text
from story_model import FULL_STORY, PARTIAL_STORY


async def test_a_story_an_approval_and_a_job_through_kill_9(tmp_path: Path) -> None:
    """Everything is said once, in the issue of the mention, through three kills and a redelivery."""
    async with simulate() as platform:
        secret = {"mode": "webhook", "webhook_secret": platform.secret, "sends_per_second": 100}
        settings = platform.settings(**secret, groups="mention")
        async with open_story(platform, "github", settings, tmp_path / "data") as process:
            question = await platform.say("", "@dovecote tell me a story")
            await platform.say("", "Not you.")
            await wait_for_bot_message(platform, PARTIAL_STORY)
            await kill_and_restart(process)
            await wait_for_bot_message(platform, FULL_STORY)
            await platform.say("", "@dovecote start the job")
            asked = await wait_for_bot_message(platform, "May I run this?")
            await kill_and_restart(process)
            await platform.say("", asked.text.rpartition("\n")[2].partition(" or ")[0])
            await wait_for_bot_message(platform, "It is under way.")
            await kill_and_restart(process)
            assert await platform.redeliver() == 200
            await wait_for_bot_message(platform, "The job said: pigeon")
            await wait_for_bot_message(platform, "not accept files")
            await wait_until_settled(process, 4)
            await platform.wait_until(lambda: "rocket" in [one for one, _ in question.reactions.values()])
    texts = [one.text for one in platform.messages()]
    assert sum("/files/" in one.raw for one in platform.messages()) == 1
    wanted = (FULL_STORY, "Approved by ada", "It is under way.", "The job said: pigeon", "not accept files")
    assert [sum(words in text for text in texts) for words in wanted] == [1, 1, 1, 1, 1], texts
    assert {one.thread for one in platform.messages()} == {"1"}
    assert platform.api.hook["secret"] == platform.secret, "the gateway registered its URL"
    assert set(platform.hook_statuses) == {200}


@asynccontextmanager
async def listening_agent(data: Path) -> AsyncIterator[tuple[GitHub, list[str]]]:
    """Run an agent that counts its answers; yields the platform, and what the model is asked."""
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> ScriptedTurn:
        asked.append(last_text(body))
        return ScriptedTurn(text=f"answer {len(asked)}", pieces=1)

    async with simulate() as platform:
        secret = {"mode": "webhook", "webhook_secret": platform.secret, "sends_per_second": 100}
        settings = platform.settings(**secret, groups="mention")
        async with open_story(platform, "github", settings, data, answer):
            yield platform, asked


async def test_the_agent_knows_the_issue_and_the_code_below_which_it_is_mentioned(tmp_path: Path) -> None:
    """The first mention brings what was written before the app came, a later one in the thread does not."""
    async with listening_agent(tmp_path / "data") as (platform, asked):
        await platform.say("", "@dovecote what is this about?")
        await wait_for_bot_message(platform, "answer 1")
        await platform.say("", "@dovecote and now?")
        await wait_for_bot_message(platform, "answer 2")
        await platform.comment("review_comment", 2, "@dovecote why this line?")
        await wait_for_bot_message(platform, "answer 3")
        await platform.comment("discussion_comment", 3, "@dovecote sum it up")
        await wait_for_bot_message(platform, "answer 4")
    assert ["It is so." in text for text in asked] == [True, False, True, True], asked
    assert "Code: loft.py, line 3\n@@ -1,2 +1,3 @@\n import dove\n \n+loft = dove.Loft(size=12)" in asked[2]


async def test_a_mention_brings_what_a_review_and_a_discussion_said_before(tmp_path: Path) -> None:
    """Comments on lines come with their places; those of a discussion come to each new thread in it."""
    async with listening_agent(tmp_path / "data") as (platform, asked):
        await platform.comment("review_comment", 2, "Use a name.")
        await platform.comment("discussion_comment", 3, "I want maize.")
        await platform.comment("issue_comment", 2, "@dovecote do what the review asks")
        await wait_for_bot_message(platform, "answer 1")
        await platform.comment("discussion_comment", 3, "@dovecote who wants what?")
        await wait_for_bot_message(platform, "answer 2")
    assert "Use a name.\n\nCode: loft.py, line 3" in asked[0]
    assert "I want maize." in asked[1]
