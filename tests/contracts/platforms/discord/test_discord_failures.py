"""Discord fails as in production: bans, expired sessions, floods, late responses, one kind of content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.errors import Ambiguous, NotPermitted, RateLimited, Rejected
from channels.message import Address, Button, Command, File, Message, Reply
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState

CHAT, ADA = 4004, 7001
ROOM = Address(channel="chn_contract", room=str(CHAT))
FILE = File(name="a.txt", media_type="text/plain", content=b"abc", caption="look")


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


def make_reply(text: str, key: str, **others: Any) -> Reply:
    """Return a reply."""
    return Reply(text=text, key=key, **others)


async def test_a_banned_address_pauses_the_whole_bot(simulator: Simulator) -> None:
    """The proxy answers without JSON; every room waits as long as it states."""
    await simulator.ban_after(3)
    async with open_connection(plugin, simulator.settings()) as connection:
        await simulator.deny(CHAT, "Send Messages")
        for number in range(3):
            with pytest.raises(NotPermitted):
                await connection.sender.send(ROOM, make_reply("x", str(number)))
        with pytest.raises(RateLimited) as caught:
            await connection.sender.typing(Address(channel="chn_contract", room=str(ADA)))
        assert (caught.value.scope, caught.value.retry_after > 3000) == ("account", True)
        await simulator.allow(CHAT)
        await simulator.pass_time(3601)
        await connection.sender.send(ROOM, make_reply("free again", "4"))


async def test_shared_limits_do_not_lead_to_a_ban(simulator: Simulator) -> None:
    """Discord does not count a 429 that other bots caused."""
    await simulator.ban_after(2)
    async with open_connection(plugin, simulator.settings()) as connection:
        for number in range(3):
            await simulator.throttle(0.01)
            simulator.server.faults[-1].failure.headers["X-RateLimit-Scope"] = "shared"  # type: ignore[union-attr]
            with pytest.raises(RateLimited):
                await connection.sender.send(ROOM, make_reply("x", str(number)))
        await connection.sender.send(ROOM, make_reply("no ban", "4"))


async def test_an_expired_session_is_made_up_from_history(simulator: Simulator) -> None:
    """A process that was away too long begins a session (9) and reads what was said."""
    state, first, second = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, first),
    ):
        await simulator.say(CHAT, "before")
        await first.wait(1)
    await simulator.pass_time(600)
    await simulator.say(CHAT, "meanwhile")
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, second),
    ):
        await second.wait(1)
    assert [one.text for one in second.updates if isinstance(one, Message)] == ["meanwhile"]
    assert (simulator.sessions.identified, simulator.sessions.resumed) == (2, 0)


async def test_a_command_that_is_replayed_too_late_is_answered_in_the_channel(simulator: Simulator) -> None:
    """Its three seconds are over when the next process receives it; the answer is a message, once."""
    state, before = MemoryChannelState(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, before),
    ):
        await simulator.say(CHAT, "before")
        await before.wait(1)
    asked = await simulator.command(CHAT, "status")
    await simulator.pass_time(10)
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, recorder),
    ):
        (command,) = await recorder.wait(1)
        assert isinstance(command, Command)
        await connection.sender.reply_privately(command, "all is well")
    assert asked.response_type is None
    assert [post.text for post in simulator.messages()] == ["all is well"]


@pytest.mark.parametrize("only", ["files", "buttons", "text"])
async def test_one_kind_of_content_fails_and_the_others_pass(simulator: Simulator, only: str) -> None:
    """Discord's servers may fail for attachments alone; nothing else is held back by it."""
    await simulator.fail(503, times=10, only=only)
    buttons = (Button(label="Yes", data="y"),)
    async with open_connection(plugin, simulator.settings()) as connection:
        sender, failed = connection.sender, []
        for kind, call in (
            ("files", sender.upload(ROOM, FILE, key="1")),
            ("buttons", sender.send(ROOM, make_reply("May I?", "2", buttons=buttons))),
            ("text", sender.send(ROOM, make_reply("hello", "3"))),
        ):
            try:
                await call
            except Ambiguous:
                failed.append(kind)
    assert failed == [only]


async def test_a_late_response_is_ambiguous_and_its_message_is_one(simulator: Simulator) -> None:
    """A response after the caller gave up: the same key later finds the message that was sent."""
    await simulator.answer_late(12)
    async with open_connection(plugin, simulator.settings()) as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await connection.sender.send(ROOM, make_reply("once", "k"))
        await simulator.wait_for_messages(1)
        sent = await connection.sender.send(ROOM, make_reply("once", "k"))
    assert [post.id for post in simulator.messages()] == [sent.platform_id]


async def test_a_client_that_floods_the_socket_is_closed(simulator: Simulator) -> None:
    """After 120 frames in a minute Discord closes with 4008; the adapter waits and resumes."""
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"ws://127.0.0.1:{simulator.port}/gateway/") as socket,
    ):
        for _ in range(121):
            await socket.send_json({"op": 1, "d": None})
        while (await socket.receive(timeout=60)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert socket.close_code == 4008
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        await simulator.say(CHAT, "before")
        await recorder.wait(1)
        await simulator.drop(code=4008)
        await simulator.say(CHAT, "after")
        await recorder.wait(2)
    assert simulator.sessions.resumed == 1
    assert "rate limited" in recorder.reasons[0]


async def test_no_unknown_kind_of_content_can_be_failed(simulator: Simulator) -> None:
    """A misspelt kind would make a test pass for nothing."""
    with pytest.raises(ValueError, match="files"):
        await simulator.fail(503, only="file")


async def test_an_old_message_that_was_edited_too_often_is_refused(simulator: Simulator) -> None:
    """Discord answers 429 with code 30046; the room's other messages and edits do not wait."""
    async with open_connection(plugin, simulator.settings()) as connection:
        sent = await connection.sender.send(ROOM, make_reply("a draft", "1"))
        await simulator.fail(429, code=30046, name="edit", message="Maximum number of edits reached")
        with pytest.raises(Rejected, match="30046"):
            await connection.sender.edit(ROOM, sent.platform_id, make_reply("the answer", "1"))
        await connection.sender.edit(ROOM, sent.platform_id, make_reply("the answer", "1"))


async def test_a_message_of_an_archived_thread_is_replaced_by_a_new_one(simulator: Simulator) -> None:
    """An edit is refused there, a new message opens the thread."""
    thread = await simulator.thread(CHAT)
    address = Address(channel="chn_contract", room=str(CHAT), thread=str(thread))
    async with open_connection(plugin, simulator.settings()) as connection:
        sent = await connection.sender.send(address, make_reply("a draft", "1"))
        await simulator.archive(thread)
        with pytest.raises(Rejected, match="50083"):
            await connection.sender.edit(address, sent.platform_id, make_reply("the answer", "1"))
        await connection.sender.send(address, make_reply("the answer", "2"))
        await connection.sender.edit(address, sent.platform_id, make_reply("open again", "1"))
