"""A person on GitHub: an answer, an approval by comment, a job, kill -9, and its result in the issue."""

from __future__ import annotations

from pathlib import Path

from bot_messages import wait_for_bot_message, wait_until_settled
from channels.github.simulator import simulate
from inbox_stories import kill_and_restart, open_story
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
