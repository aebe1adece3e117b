"""A person on Zalo: an answer, an approval by text, a job, kill -9, and its result in the chat."""

from __future__ import annotations

from pathlib import Path

from bot_messages import wait_for_bot_message, wait_until_settled
from channels.zalo.simulator import simulate
from inbox_stories import kill_and_restart, open_story, wait_for_question
from story_model import FULL_STORY, StoryModel


async def test_a_story_an_approval_and_a_job_through_kill_9(tmp_path: Path) -> None:
    """Everything is said once, posted updates included, and the file is a link."""
    script = StoryModel()
    async with simulate() as platform:
        settings = platform.settings(mode="webhook", webhook_secret="a-webhook-secret")
        async with open_story(platform, "zalo", settings, tmp_path / "data", script) as process:
            await platform.wait_until(lambda: bool(platform.hook["url"]))
            await platform.say("", "tell me a story")
            await wait_for_question(script)
            await kill_and_restart(process)
            await wait_for_bot_message(platform, FULL_STORY)
            await platform.say("", "start the job")
            asked = await wait_for_bot_message(platform, "May I run this?")
            await wait_until_settled(process, 2)
            await kill_and_restart(process)
            await platform.say("", asked.text.rpartition("\n")[2].partition(" or ")[0])
            await wait_for_bot_message(platform, "It is under way.")
            await wait_until_settled(process, 3)  # Zalo cannot be asked whether it got a message
            await kill_and_restart(process)
            await wait_for_bot_message(platform, "The job said: pigeon")
            await wait_for_bot_message(platform, "not accept files")
            await wait_until_settled(process, 4)
    texts = [one.text for one in platform.messages()]
    wanted = (FULL_STORY, "May I run", "Approved", "It is under way.", "The job said: pigeon", "/files/")
    assert [sum(words in text for text in texts) for words in wanted] == [1, 1, 1, 1, 1, 1], texts
    assert set(platform.hook_statuses) == {200}
