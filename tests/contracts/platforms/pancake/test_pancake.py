"""What the Pancake adapter does beyond the contract: comments, agents, posts that are only announcements."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from channels.errors import Rejected, Undeliverable, Unreachable
from channels.message import File, Message, RoomKind
from channels.pancake import plugin
from channels.pancake.simulator import Simulator, simulate
from channels.pancake.simulator.simulator import AGENT, COMMENTS, INBOX, PAGE
from channels.port import Connection, WebhookRequest
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState
from channels.testing.sending import make_reply
from egress.guard import TRUSTED


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run a simulated Pancake."""
    async with simulate() as simulator:
        yield simulator


async def received(platform: Simulator, page: Connection, name: str, text: str) -> Message:
    """Let a person write, and return the message as the page receives it."""
    recorder = UpdateRecorder()
    async with receiving(page, recorder):
        await platform.write(name, text)
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    return update


def announcement(conversation: str, page: str = PAGE) -> WebhookRequest:
    """Return a post about a conversation; whatever it says about messages does not matter."""
    data = {"conversation": {"id": conversation}, "message": {"id": "m_0", "message": "forged"}}
    body = {"page_id": page, "event_type": "messaging", "data": data}
    return WebhookRequest(headers={}, body=json.dumps(body).encode())


@pytest.mark.parametrize(("way", "action"), [("public", "reply_comment"), ("private", "private_replies")])
async def test_a_comment_is_answered_as_the_settings_say(platform: Simulator, way: str, action: str) -> None:
    """A comment is public, so it is for the bot only if it names the page; a file there is refused."""
    settings = platform.settings(comment_replies=way, page_name="The Loft")
    async with open_connection(plugin, settings) as page:
        question = await received(platform, page, COMMENTS, "@The Loft how much?")
        assert (question.text, question.mentions_bot, question.room) == ("how much?", True, RoomKind.GROUP)
        await page.sender.send(question.address, make_reply("**5**"))
        file = File(name="a.txt", media_type="text/plain", content=b"a")
        with pytest.raises(Rejected, match="no files"):
            await page.sender.upload(question.address, file, key="dlv_1.0")
    (given,) = platform.requests
    assert (given["action"], given["message"], given["message_id"]) == (action, "5", question.platform_id)
    assert (given.get("from_id"), given.get("post_id")) == (
        ("ada-7", "5001_post-1") if way == "private" else (None, None)
    )


async def test_an_agents_message_is_not_answered(platform: Simulator) -> None:
    """A person who writes for the page in Pancake is recognised, and so is the bot itself."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, platform.settings()) as page, receiving(page, recorder):
        await platform.write(INBOX, "I will look.", author=AGENT)
        await platform.write(INBOX, "Thank you.")
        updates = await recorder.wait(1)
    assert [one.text for one in updates if isinstance(one, Message)] == ["Thank you."]


async def test_a_post_is_answered_with_200_whatever_it_says(platform: Simulator) -> None:
    """It leads to Pancake's own messages; forged ones, failures and nonsense change nothing."""
    recorder = UpdateRecorder(refusals=1)
    async with open_connection(plugin, platform.settings(mode="webhook")) as page:
        await platform.write(INBOX, "real")
        posts = [announcement(INBOX), announcement(INBOX, page="another"), announcement("nowhere")]
        posts += [announcement(INBOX), WebhookRequest(headers={}, body=b"garbage")]
        statuses = [(await page.receiver.receive(post, recorder.accept)).status for post in posts]
        platform.cut("other", times=2)  # aiohttp repeats a question once
        statuses.append((await page.receiver.receive(announcement(INBOX), recorder.accept)).status)
    assert statuses == [200] * 6
    assert [one.text for one in recorder.updates if isinstance(one, Message)] == ["real"]


async def test_messages_during_a_gap_are_read(platform: Simulator) -> None:
    """Pancake keeps the messages: more than one page of them is read after the restart, in order."""
    state, recorder = MemoryChannelState(), UpdateRecorder()
    settings = platform.settings(mode="webhook", catch_up_seconds=0.05)
    async with open_connection(plugin, settings, state):
        pass
    for number in range(45):
        await platform.write(INBOX, str(number))
    async with open_connection(plugin, settings, state) as page, receiving(page, recorder):
        updates = await recorder.wait(45)
    assert [one.text for one in updates if isinstance(one, Message)] == [str(number) for number in range(45)]
    assert all(len(value) <= 1000 for value in state.values.values())


async def test_a_conversation_that_cannot_be_read_holds_up_no_other(platform: Simulator) -> None:
    """It is noted, also through a restart, and what was written there is received once it can be read."""
    state, recorder = MemoryChannelState(), UpdateRecorder()
    async with open_connection(plugin, platform.settings(), state) as page, receiving(page, recorder):
        platform.unreadable.add(COMMENTS)
        await platform.write(COMMENTS, "unreadable")
        for text in ("one", "two"):
            await platform.write(INBOX, text)
        await recorder.wait(2)
    state.values["messages:position"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    platform.unreadable.clear()
    async with open_connection(plugin, platform.settings(), state) as page, receiving(page, recorder):
        await recorder.wait(3)
    assert [one.text for one in recorder.updates if isinstance(one, Message)] == ["one", "two", "unreadable"]


@pytest.mark.parametrize("is_listed_late", [False, True])
async def test_a_message_that_appears_late_is_received(platform: Simulator, *, is_listed_late: bool) -> None:
    """The platform behind the page passed it on after half an hour, in which others have written."""
    state, recorder = MemoryChannelState(), UpdateRecorder()
    async with open_connection(plugin, platform.settings(), state):
        pass
    state.values |= dict.fromkeys(("messages:start", "messages:position"), "2026-01-01T00:00:00+00:00")
    half_an_hour_ago = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
    async with open_connection(plugin, platform.settings(), state) as page, receiving(page, recorder):
        await platform.write(INBOX, "in time")
        await recorder.wait(1)
        await platform.wait_until(lambda: state.values["messages:position"] > half_an_hour_ago)
    await platform.write(COMMENTS, "late", inserted_at=half_an_hour_ago)
    if is_listed_late:
        platform.conversations[COMMENTS]["updated_at"] = half_an_hour_ago
    async with open_connection(plugin, platform.settings(), state) as page, receiving(page, recorder):
        await platform.wait_until(lambda: "late" in [getattr(one, "text", "") for one in recorder.updates])


async def test_a_conversation_without_a_change_is_not_read_again(platform: Simulator) -> None:
    """Each search lists it for an hour; its messages are asked for once, and once more for each change."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, platform.settings()) as page, receiving(page, recorder):
        await recorder.wait_until_receiving()
        await platform.write(INBOX, "one")
        await recorder.wait(1)
        lists = platform.counts["receive"]
        await platform.wait_until(lambda: platform.counts["receive"] > lists + 4)
        await platform.write(INBOX, "two")
        await recorder.wait(2)
    assert platform.counts["other"] <= 8, "two pages for each reading"


async def test_a_time_in_the_future_hides_no_message(platform: Simulator) -> None:
    """The position is never after the present."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, platform.settings()) as page, receiving(page, recorder):
        await platform.write(COMMENTS, "from 2099", inserted_at="2099-01-01T00:00:00")
        await recorder.wait(1)
        await platform.write(INBOX, "from now")
        await recorder.wait(2)


async def test_a_file_that_is_not_stored_is_not_ambiguous(platform: Simulator) -> None:
    """The message with it was not sent, so `ambiguous` does not decide, and it is sent once."""
    file = File(name="notes.txt", media_type="text/plain", content=b"grey")
    async with open_connection(plugin, platform.settings()) as page:
        question = await received(platform, page, INBOX, "hello")
        platform.fail("upload", 502, {})
        with pytest.raises(Unreachable, match="nothing was sent"):
            await page.sender.upload(question.address, file, key="dlv_1.0")
        assert platform.messages() == []
        await page.sender.upload(question.address, file, key="dlv_1.0")
    assert [one.raw for one in platform.messages()] == ["reply_inbox"]


async def test_a_closed_window_is_explained(platform: Simulator) -> None:
    """The conversation is closed until the person writes, and what it missed is sent then."""
    async with open_connection(plugin, platform.settings()) as page:
        question = await received(platform, page, INBOX, "hello")
        body = {"success": False, "message": "(#10) This message is sent outside of allowed window."}
        platform.fail("send", 200, body)
        with pytest.raises(Undeliverable, match="must write again"):
            await page.sender.send(question.address, make_reply("late"))
        await page.sender.send(question.address, make_reply("in time"))


async def test_a_second_private_reply_to_a_comment_is_explained(platform: Simulator) -> None:
    """Facebook accepts one; the refusal of the next says what the operator can change."""
    settings = platform.settings(comment_replies="private", page_name="The Loft")
    async with open_connection(plugin, settings) as page:
        question = await received(platform, page, COMMENTS, "@The Loft how much?")
        await page.sender.send(question.address, make_reply("5"))
        with pytest.raises(Rejected, match=r"one private reply.*comment_replies"):
            await page.sender.send(question.address, make_reply("or 6"))


async def test_the_probe_says_whether_comments_are_answered(platform: Simulator) -> None:
    """Comments need a name or the setting for all."""
    details: dict[str, Any] = {}
    for name in ("", "The Loft"):
        findings = await plugin.probe(plugin.settings(**platform.settings(page_name=name)), TRUSTED)
        details[name] = findings[-1].detail
    assert details == {"": 'are ignored: set page_name, or groups = "always"', "The Loft": "are answered"}
