"""A person on a page in Pancake: an answer, an approval by text, a job, kill -9, its result and its file."""

from __future__ import annotations

from pathlib import Path

from bot_messages import wait_for_bot_message, wait_until_settled
from channels.pancake.simulator import simulate
from channels.pancake.simulator.simulator import AGENT, COMMENTS, INBOX
from inbox_stories import kill_and_restart, open_story, wait_for_question
from openai_server import ScriptedTurn
from story_model import FULL_STORY, StoryModel

ANSWER = ScriptedTurn(text="Yes, until 8.")


async def test_a_story_an_approval_and_a_job_through_kill_9(tmp_path: Path) -> None:
    """Everything is said once in the inbox; what an agent says is not answered, nor is a post refused."""
    script = StoryModel()
    async with simulate() as platform:
        settings = platform.settings(mode="webhook", catch_up_seconds=1)
        async with open_story(platform, "pancake", settings, tmp_path / "data", script) as process:
            await platform.say("", "tell me a story")
            await wait_for_question(script)
            await process.kill()
            await platform.write(INBOX, "I am here too.", author=AGENT)
            await platform.say("", "start the job")
            assert platform.hook_statuses.pop() == platform.hook_statuses.pop() == 502
            await process.start()
            await wait_for_bot_message(platform, FULL_STORY)
            asked = await wait_for_bot_message(platform, "May I run this?")
            await wait_until_settled(process, 2)
            await kill_and_restart(process)
            await platform.say("", asked.text.rpartition("\n")[2].partition(" or ")[0])
            await wait_for_bot_message(platform, "It is under way.")
            await wait_until_settled(process, 3)  # Pancake cannot be asked whether it got a message
            await kill_and_restart(process)
            await wait_for_bot_message(platform, "The job said: pigeon")
            await platform.wait_until(lambda: bool(platform.uploads))
            await wait_until_settled(process, 4)
    texts = [one.text for one in platform.messages()]
    wanted = (FULL_STORY, "May I run this?", "Approved", "It is under way.", "The job said: pigeon")
    assert [sum(words in text for text in texts) for words in wanted] == [1, 1, 1, 1, 1], texts
    assert list(platform.uploads.values()) == [b"a feather"]
    assert (script.story_requests, set(platform.hook_statuses)) == (2, {200})


async def test_each_comment_is_answered_where_it_is(tmp_path: Path) -> None:
    """A comment accepts one private reply, so the second answer is one to the second comment."""
    async with simulate() as platform:
        settings = platform.settings(mode="webhook", page_name="The Loft", comment_replies="private")
        async with open_story(platform, "pancake", settings, tmp_path / "data", [ANSWER, ANSWER]) as process:
            asked = []
            for count in (1, 2):
                asked.append(await platform.write(COMMENTS, "@The Loft are you open?"))
                await wait_until_settled(process, count)
    assert [(one["action"], one["message_id"]) for one in platform.requests] == [
        ("private_replies", number) for number in asked
    ]
