"""Comments on a channel's post: how each is read, and where its answer is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channels.errors import ThreadUndeliverable
from channels.message import Address, Button, ButtonPress, DraftText, File, Message, Reply
from channels.port import Connection
from channels.telegram import plugin
from channels.telegram.simulator import Simulator, simulate
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState

GROUP, CHANNEL = -1_001_234_567_890, -1_009_999_999_999


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Telegram with a supergroup that discusses the posts of a channel."""
    async with simulate() as simulator:
        await simulator.group(GROUP)
        await simulator.discussion(GROUP, CHANNEL)
        yield simulator


@pytest.fixture
async def telegram(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that polls."""
    async with open_connection(plugin, simulator.settings(poll_seconds=5)) as connection:
        yield connection


async def read(telegram: Connection, count: int) -> list[Message]:
    """Receive messages of people, on this connection."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        updates = await recorder.wait(count)
    return [update for update in updates if isinstance(update, Message)]


async def test_each_post_has_a_thread_of_its_own(simulator: Simulator, telegram: Connection) -> None:
    """A comment on one post, on a comment and on the bot's answer there share it; other replies have none."""
    first, second = [await simulator.publish(GROUP, text) for text in ("one", "two")]
    comment = await simulator.say(GROUP, "@dovecote_bot a", user=7, reply_to=first)
    await simulator.say(GROUP, "@dovecote_bot b", user=8, reply_to=comment)
    await simulator.say(GROUP, "@dovecote_bot c", user=7, reply_to=second)
    talk = await simulator.say(GROUP, "@dovecote_bot d", user=7)
    await simulator.say(GROUP, "@dovecote_bot e", user=8, reply_to=talk)
    messages = await read(telegram, 5)
    of_first, of_second = f"comments-{first}", f"comments-{second}"
    assert [one.address.thread for one in messages] == [of_first, of_first, of_second, None, None]


async def test_an_unknown_root_is_looked_up_once(simulator: Simulator, telegram: Connection) -> None:
    """A reply to a reply does not say what began the chain: the group's channel decides."""
    old = await simulator.say(GROUP, "before the bot joined", user=7)
    answer = await simulator.say(GROUP, "so was this", user=8, reply_to=old)
    await simulator.group(GROUP - 1)
    talk = await simulator.say(GROUP - 1, "talk", user=8)
    more = await simulator.say(GROUP - 1, "more", user=8, reply_to=talk)
    simulator.world.updates.clear()
    for _ in range(2):
        await simulator.say(GROUP, "@dovecote_bot hi", user=7, reply_to=answer)
        await simulator.say(GROUP - 1, "@dovecote_bot hi", user=7, reply_to=more)
    messages = await read(telegram, 4)
    assert [one.address.thread for one in messages] == [f"comments-{old}", None] * 2
    assert sum(method == "getChat" for method, _ in simulator.calls) == 2


async def test_a_chain_that_is_later_than_all_posts_is_a_talk(simulator: Simulator) -> None:
    """Telegram pins each post in the group, and comments cannot begin after the last one."""
    state = MemoryChannelState()
    post = await simulator.publish(GROUP, "news")
    comment = await simulator.say(GROUP, "a comment", user=7, reply_to=post)
    talk = await simulator.say(GROUP, "among people", user=7)
    more = await simulator.say(GROUP, "more", user=8, reply_to=talk)
    simulator.world.updates.clear()
    for _ in range(2):
        for message in (more, comment):
            await simulator.say(GROUP, "@dovecote_bot hi", user=7, reply_to=message)
        async with open_connection(plugin, simulator.settings(poll_seconds=5), state) as connection:
            messages = await read(connection, 2)
        assert [one.address.thread for one in messages] == [None, f"comments-{post}"]
        simulator.world.updates.clear()
        await simulator.publish(GROUP, "more news")


async def test_a_talk_in_the_group_goes_on_as_one_conversation(
    simulator: Simulator, telegram: Connection
) -> None:
    """Its beginning was received, so replies to replies there are no comments, nor are presses of buttons."""
    recorder, buttons = UpdateRecorder(), (Button(label="Yes", data="yes"),)
    room = Address(channel="chn_contract", room=str(GROUP))
    async with receiving(telegram, recorder):
        numbers = [await simulator.say(GROUP, "@dovecote_bot a", user=7)]
        for count, words in enumerate(("b", "c"), start=1):
            await recorder.wait(count)
            reply = Reply(text=words, key=words, buttons=buttons, reply_to=str(numbers[-1]))
            numbers.append(int((await telegram.sender.send(room, reply)).platform_id))
            numbers.append(await simulator.say(GROUP, words, user=7, reply_to=numbers[-1]))
        await simulator.press(GROUP, numbers[-2], "yes", user=7)
        updates = await recorder.wait(4)
    assert [one.address for one in updates if isinstance(one, Message | ButtonPress)] == [room] * 4


async def test_a_talk_goes_on_as_one_conversation_after_a_restart(simulator: Simulator) -> None:
    """What began the chain is in the channel's state, so no later process takes a reply for a comment."""
    room, state = Address(channel="chn_contract", room=str(GROUP)), MemoryChannelState()
    first = await simulator.say(GROUP, "@dovecote_bot a", user=7)
    async with open_connection(plugin, simulator.settings(poll_seconds=5), state) as connection:
        await read(connection, 1)
        answer = await connection.sender.send(room, Reply(text="b", key="b", reply_to=str(first)))
    simulator.world.updates.clear()
    await simulator.say(GROUP, "c", user=7, reply_to=int(answer.platform_id))
    async with open_connection(plugin, simulator.settings(poll_seconds=5), state) as connection:
        (message,) = await read(connection, 1)
    assert message.address == room


async def test_a_group_that_cannot_be_asked_about_holds_no_update(
    simulator: Simulator, telegram: Connection
) -> None:
    """The message is received without a thread, and the next one asks again."""
    first = await simulator.say(GROUP, "talk", user=7)
    answer = await simulator.say(GROUP, "more", user=8, reply_to=first)
    simulator.world.updates.clear()
    await simulator.fail(500, method="getChat")
    for _ in range(2):
        await simulator.say(GROUP, "@dovecote_bot hi", user=7, reply_to=answer)
    messages = await read(telegram, 2)
    assert [one.address.thread for one in messages] == [None, f"comments-{first}"]


async def test_everything_sent_is_among_the_comments(simulator: Simulator, telegram: Connection) -> None:
    """Texts, files with long captions, drafts and presses of buttons belong to the post."""
    root = await simulator.publish(GROUP, "one")
    address = Address(channel="chn_contract", room=str(GROUP), thread=f"comments-{root}")
    sender = telegram.sender
    buttons = (Button(label="Yes", data="yes"),)
    asked = await sender.send(address, Reply(text="?", key="a", buttons=buttons))
    await sender.send(address, Reply(text="queued", key="b", reply_to=asked.platform_id))
    await sender.update_draft(address, DraftText(text="half", key="c"))
    file = File(name="a.txt", media_type="text/plain", content=b"x", caption="word " * 500)
    await sender.upload(address, file, key="d")
    await sender.typing(address)
    assert {post.thread for post in simulator.messages(GROUP)} == {root}
    assert simulator.methods.actions == [(GROUP, root, "typing")]
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.press(GROUP, int(asked.platform_id), "yes", user=7)
        (press,) = [one for one in await recorder.wait(1) if isinstance(one, ButtonPress)]
    assert press.address == address


async def test_comments_of_a_deleted_post_are_a_dead_thread(
    simulator: Simulator, telegram: Connection
) -> None:
    """The answer can be sent to the group instead."""
    root = await simulator.publish(GROUP, "one")
    await simulator.remove(GROUP, root)
    address = Address(channel="chn_contract", room=str(GROUP), thread=f"comments-{root}")
    with pytest.raises(ThreadUndeliverable, match="message to be replied not found"):
        await telegram.sender.send(address, Reply(text="late", key="a"))
    assert plugin.limits.public_place(address) == address.whole_room
