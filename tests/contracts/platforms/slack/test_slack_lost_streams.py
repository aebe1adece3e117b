"""A stream whose start was lost becomes the reply; streams and statuses that were refused are tried again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from channels.errors import Ambiguous
from channels.message import DraftText
from channels.port import Connection
from channels.slack import plugin
from channels.slack.api import connect
from channels.slack.send.assistant_status import AssistantStatus
from channels.slack.settings import SlackSettings
from channels.slack.simulator import Simulator
from channels.testing.connections import open_connection
from channels.testing.memory_state import MemoryChannelState
from egress.guard import TRUSTED
from slack_connections import make_reply, thread_address

STARTED_KEY = "draft_lost"
STARTED = DraftText(key=STARTED_KEY, text="**one** & two", recipient_id="U0ADA")
LONG_AGO = datetime.now(UTC) - timedelta(hours=1)


async def test_the_message_of_a_lost_start_is_edited(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """Any replica finds it by its text, ends its stream, and changes it: one message is left."""
    thread = thread_address(await simulator.say("C0ROOM", "a question"))
    await simulator.cut(method="chat.startStream", after=True)
    with pytest.raises(Ambiguous):
        await slack.sender.update_draft(thread, STARTED)
    async with open_connection(plugin, simulator.settings(), notes) as other:
        found = await other.sender.find(thread, STARTED_KEY, since=LONG_AGO)
        assert found is not None
        await other.sender.edit(thread, found.platform_id, make_reply("one & two, three"))
    assert [(post.text, post.streaming) for post in simulator.messages()] == [("one & two, three", None)]


async def test_the_message_of_a_start_that_was_given_up_is_edited(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """The call was given up, as by a process that is killed, before Slack's answer came."""
    thread = thread_address(await simulator.say("C0ROOM", "a question"))
    await simulator.answer_late(60, method="chat.startStream")
    starting = asyncio.create_task(slack.sender.update_draft(thread, STARTED))
    await simulator.wait_for_messages(1)
    starting.cancel()
    async with open_connection(plugin, simulator.settings(), notes) as other:
        found = await other.sender.find(thread, STARTED_KEY, since=LONG_AGO)
        assert found is not None
        await other.sender.edit(thread, found.platform_id, make_reply("one & two, three"))
    assert [(post.text, post.streaming) for post in simulator.messages()] == [("one & two, three", None)]


async def test_a_start_that_was_not_carried_out_is_not_found(simulator: Simulator, slack: Connection) -> None:
    """The reply is sent then."""
    thread = thread_address(await simulator.say("C0ROOM", "another question"))
    await simulator.cut(method="chat.startStream", after=False)
    with pytest.raises(Ambiguous):
        await slack.sender.update_draft(thread, STARTED)
    assert await slack.sender.find(thread, STARTED_KEY, since=LONG_AGO) is None


@pytest.mark.parametrize(
    "error", ["invalid_thread_ts", "thread_not_found", "not_in_channel", "is_archived", "user_not_found"]
)
async def test_a_refusal_that_passes_ends_no_other_streams(
    simulator: Simulator, slack: Connection, error: str
) -> None:
    """It concerns one thread or person, or the room at that moment: the next reply there is streamed."""
    thread = thread_address(await simulator.say("C0ROOM", "a question"))
    await simulator.fail(error, method="chat.startStream")
    first = await slack.sender.update_draft(thread, STARTED)
    second = await slack.sender.update_draft(thread, STARTED)
    assert [sent is not None and sent.platform_id.startswith("stream:") for sent in (first, second)] == [
        False,
        True,
    ]


async def test_a_thread_that_refused_a_status_is_asked_again_later(simulator: Simulator) -> None:
    """The bot may have been invited in the meantime."""
    thread = thread_address(await simulator.say("C0ROOM", "a question"))
    async with connect(SlackSettings.model_validate(simulator.settings()), TRUSTED) as api:
        status = AssistantStatus(api, refused_seconds=0.0)
        await simulator.fail("not_in_channel", method="assistant.threads.setStatus")
        for shown in ("", "is working…"):
            await status.show_working(thread)
            assert simulator.world.status("C0ROOM", thread.thread or "") == shown
