"""What Discord alone has: signatures, resumed sessions, history, nonces, deferred commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from channels.discord import plugin
from channels.discord.errors import translate_error
from channels.discord.receive.interactions import is_signed
from channels.discord.send import markup
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.message import Address, Button, ButtonPress, Command, Message, Reply
from channels.port import Connection, WebhookRequest
from channels.testing.connections import UpdateRecorder, open_connection, receiving

CHAT = 4004
ROOM = Address(channel="chn_contract", room=str(CHAT))


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


@pytest.fixture
async def discord(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that listens at the gateway."""
    async with open_connection(plugin, simulator.settings()) as connection:
        yield connection


def make_reply(text: str, key: str = "dlv_1.0", **others: Any) -> Reply:
    """Return a reply."""
    return Reply(text=text, key=key, **others)


async def wait_until_connected(simulator: Simulator) -> None:
    """Wait until the bot is in the room: earlier messages would be lost."""
    await simulator.wait_until(lambda: simulator.sessions.identified == 1)


def received_texts(recorder: UpdateRecorder) -> list[str]:
    """Return the updates that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def test_a_resumed_session_loses_and_repeats_nothing(simulator: Simulator, discord: Connection) -> None:
    """Messages sent while the connection is away are replayed, in order, without a new session."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.say(CHAT, "0")
        await recorder.wait(1)
        await simulator.drop(refusals=2)
        for number in range(1, 6):
            await simulator.say(CHAT, str(number))
        await recorder.wait(6)
        await simulator.wait_until(lambda: simulator.sessions.resumed == 1)
    assert received_texts(recorder) == list("012345")
    assert simulator.sessions.identified == 1


async def test_what_was_not_stored_when_the_connection_broke_is_replayed(
    simulator: Simulator, discord: Connection
) -> None:
    """A resume begins after the last event that was accepted, not the last that was read."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.say(CHAT, "0")
        await recorder.wait(1)
        recorder.refusals = 2
        for number in range(1, 4):
            await simulator.say(CHAT, str(number))
        await simulator.drop()
        await recorder.wait(4)
    assert received_texts(recorder) == list("0123")


async def test_a_session_that_cannot_be_resumed_is_made_up_from_history(
    simulator: Simulator, discord: Connection
) -> None:
    """Discord forgot the session: the channel and the private conversation are read from where we were."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await wait_until_connected(simulator)
        await simulator.say(CHAT, "before")
        await simulator.say(7001, "private before")
        await recorder.wait(2)
        await simulator.drop(refusals=1, forget=True)
        await simulator.say(CHAT, "meanwhile")
        await simulator.say(7001, "private meanwhile")
        await recorder.wait(4)
        await simulator.say(CHAT, "after")
        await recorder.wait(5)
    assert sorted(received_texts(recorder)) == sorted(
        ["before", "private before", "meanwhile", "private meanwhile", "after"]
    )
    assert simulator.sessions.identified == 2


MALFORMED: list[tuple[str, Any]] = [
    ("MESSAGE_CREATE", None),
    ("MESSAGE_CREATE", {"id": 7, "channel_id": []}),
    ("MESSAGE_CREATE", {"id": "7", "channel_id": "8", "guild_id": {}, "author": "nobody"}),
    ("MESSAGE_UPDATE", {"id": "7", "channel_id": "8", "author": None}),
    ("INTERACTION_CREATE", {"id": "7", "token": None, "type": "x"}),
    ("GUILD_CREATE", {"channels": [None, 5, {"id": []}], "threads": "none", "joined_at": 5}),
    ("THREAD_CREATE", {"id": {}}),
    ("READY", []),
    ("UNHEARD_OF", {"a": [1]}),
]


@pytest.mark.parametrize(("name", "content"), MALFORMED)
async def test_a_malformed_event_does_not_end_it(
    simulator: Simulator, discord: Connection, name: str, content: Any
) -> None:
    """A message after an invalid event arrives by the same connection."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.say(CHAT, "before")
        await recorder.wait(1)
        for session in simulator.sessions.sessions.values():
            await simulator.sessions._dispatch(session, name, content)
        await simulator.sessions.send_raw("{not json")
        await simulator.sessions.send_raw('"a word"')
        await simulator.say(CHAT, "after")
        await recorder.wait(2)
    assert received_texts(recorder) == ["before", "after"]
    assert simulator.sessions.identified == 1
    assert simulator.sessions.resumed == 0


async def test_a_silent_connection_is_replaced(simulator: Simulator, discord: Connection) -> None:
    """A beat that is not answered ends the connection, and the session goes on by another."""
    simulator.sessions.interval = 0.05
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.say(CHAT, "before")
        await recorder.wait(1)
        simulator.sessions.ignores_heartbeats = True
        await simulator.wait_until(lambda: simulator.sessions.resumed > 0)
        simulator.sessions.ignores_heartbeats = False
        await simulator.say(CHAT, "after")
        await recorder.wait(2)
    assert received_texts(recorder) == ["before", "after"]


async def test_a_missing_intent_is_reported_to_the_operator(
    simulator: Simulator, discord: Connection
) -> None:
    """Discord closes with a code for it; trying again would not help."""
    simulator.sessions.fatal = 4014
    async with asyncio.timeout(20):
        with pytest.raises(Unauthorized, match="Message Content Intent"):
            await discord.receiver.run(UpdateRecorder().accept, receiving=lambda *_: None)


async def test_the_same_delivery_twice_is_one_message(simulator: Simulator, discord: Connection) -> None:
    """After a broken answer the same key gives the message that was sent; another key another one."""
    await simulator.cut(after=True)
    with pytest.raises(Ambiguous):
        await discord.sender.send(ROOM, make_reply("once", key="k" * 64))
    again = await discord.sender.send(ROOM, make_reply("once", key="k" * 64))
    other = await discord.sender.send(ROOM, make_reply("two", key="k" * 63))
    assert [post.id for post in simulator.messages()] == [again.platform_id, other.platform_id]


async def test_messages_of_the_bot_notify_no_person(simulator: Simulator, discord: Connection) -> None:
    """Mentions in a text are words."""
    await discord.sender.send(ROOM, make_reply("@everyone <@7> hello"))
    (post,) = simulator.messages()
    assert post.raw["allowed_mentions"] == {"parse": []}


async def test_the_first_answer_to_a_command_takes_its_place(
    simulator: Simulator, discord: Connection
) -> None:
    """`is thinking…` becomes the answer; the next answer is a message of its own."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await wait_until_connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how are you?")
        (reported,) = await recorder.wait(1)
        await simulator.wait_until(lambda: asked.response_type == 5)
        await simulator.say(CHAT, "a sign that the reaction's answer has come back")
        await recorder.wait(2)
    assert isinstance(reported, Message)
    assert (reported.text, reported.mentions_bot) == ("how are you?", True)
    first = await discord.sender.send(reported.address, make_reply("well", key="a"))
    again = await discord.sender.send(reported.address, make_reply("well", key="a"))
    second = await discord.sender.send(reported.address, make_reply("still well", key="b"))
    assert asked.original is not None
    assert asked.original["id"] == first.platform_id == again.platform_id != second.platform_id
    assert [post.text for post in simulator.messages()] == ["well", "still well"]


async def test_a_command_whose_time_is_over_is_answered_by_the_bot(
    simulator: Simulator, discord: Connection
) -> None:
    """An answer is sent even if Discord has forgotten the command's token."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await wait_until_connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        (reported,) = await recorder.wait(1)
        await simulator.wait_until(lambda: asked.response_type == 5)
        await simulator.say(CHAT, "a sign that the reaction's answer has come back")
        await recorder.wait(2)
    del simulator.world.interactions[asked.token]
    assert isinstance(reported, Message)
    await discord.sender.send(reported.address, make_reply("long"))
    assert [post.text for post in simulator.messages()] == ["long"]


async def test_posted_interactions_are_answered_as_discord_wants(simulator: Simulator) -> None:
    """A ping is answered, a command and a press are deferred, an unknown command gets a refusal."""
    settings = simulator.settings(mode="interactions", public_key=simulator.public_key)
    recorder = UpdateRecorder()

    async def post(raw: dict[str, Any]) -> Any:
        body = json.dumps(raw).encode()
        answer = await connection.receiver.receive(
            WebhookRequest(headers=simulator.signature_headers(body), body=body), recorder.accept
        )
        assert answer.status == 200
        return json.loads(answer.body)["type"]

    command = {"type": 2, "data": {"name": "status", "options": []}}
    press = {"type": 3, "data": {"custom_id": "yes"}, "message": {"id": "5"}}
    foreign = {"type": 2, "data": {"name": "weather"}}
    async with open_connection(plugin, settings) as connection:
        kinds = [await post({"type": 1})]
        kinds += [
            await post(simulator.create_interaction(CHAT, asked)[1]) for asked in (command, press, foreign)
        ]
    assert kinds == [1, 5, 6, 4]
    assert [type(update) for update in recorder.updates] == [Command, ButtonPress]


@pytest.mark.parametrize("key", ["", " ", None, "00", "zz" * 32])
def test_interactions_without_a_public_key_are_refused(key: str | None) -> None:
    """No setting admits unsigned requests, and the refusal does not show the token."""
    with pytest.raises(ValidationError) as caught:
        plugin.settings.model_validate({"token": "canary.a.b", "mode": "interactions", "public_key": key})
    assert "canary" not in str(caught.value)


def test_every_flipped_bit_breaks_the_signature() -> None:
    """Body, timestamp and signature are verified to the last bit, and only the owner's key signs."""
    key, outsider = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    public, body, when = key.public_key().public_bytes_raw().hex(), b'{"type":1}', "1767225600"

    def decision(signature: str, timestamp: str, content: bytes) -> bool:
        headers = {"x-signature-ed25519": signature, "x-signature-timestamp": timestamp}
        return is_signed(WebhookRequest(headers=headers, body=content), public)

    raw = key.sign(when.encode() + body)
    assert decision(raw.hex(), when, body)
    assert not decision(outsider.sign(when.encode() + body).hex(), when, body)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not decision(flipped.hex(), when, body)
    for odd in ("", " " + raw.hex(), raw.hex() + "\n", "zz" * 64, raw.hex()[:-2], "ü" * 128):
        assert not decision(odd, when, body)
    assert not decision(raw.hex(), "1767225601", body)
    assert not decision(raw.hex(), when, body + b" ")
    assert not decision(key.sign(body).hex(), "", body)


async def test_a_global_limit_concerns_the_whole_bot(simulator: Simulator, discord: Connection) -> None:
    """Discord states whether one channel or all of them have to wait."""
    for everywhere, scope in ((False, "room"), (True, "account")):
        await simulator.throttle(2.5, everywhere=everywhere)
        with pytest.raises(RateLimited) as caught:
            await discord.sender.send(ROOM, make_reply("x"))
        assert (caught.value.retry_after, caught.value.scope) == (2.5, scope)


REFUSALS: list[tuple[int, bytes, type[ChannelError]]] = [
    (400, b'{"code": 50035, "message": "Invalid Form Body"}', Rejected),
    (400, b'{"code": 50006, "message": "Cannot send an empty message"}', Rejected),
    (400, b'{"code": 50083, "message": "Thread is archived"}', Undeliverable),
    (401, b'{"code": 0, "message": "401: Unauthorized"}', Unauthorized),
    (401, b'{"code": 50027, "message": "Invalid Webhook Token"}', Rejected),
    (403, b'{"code": 50001, "message": "Missing Access"}', NotPermitted),
    (403, b'{"code": 50013, "message": "Missing Permissions"}', NotPermitted),
    (403, b'{"code": 160002, "message": "Cannot reply"}', NotPermitted),
    (403, b'{"code": 50007, "message": "Cannot send messages to this user"}', Undeliverable),
    (400, b'{"code": 40003, "message": "You are opening direct messages too fast"}', Unreachable),
    (403, b'{"code": 40004, "message": "Send messages has been temporarily disabled"}', Unreachable),
    (403, b'{"code": 40006, "message": "This feature has been temporarily disabled"}', Unreachable),
    (403, b'{"code": 20016, "message": "This action cannot be performed due to slowmode"}', Unreachable),
    (403, b'{"code": 20028, "message": "The write rate limit of the channel is hit"}', Unreachable),
    (403, b'{"code": 40002, "message": "You need to verify your account"}', Rejected),
    (403, b'{"code": 50005, "message": "Cannot edit a message of another user"}', Rejected),
    (403, b'{"code": 40333, "message": "internal network error"}', Unreachable),
    (403, b'{"code": 987654, "message": "A code of next year"}', Rejected),
    (400, b'{"code": 130000, "message": "API resource is currently overloaded"}', Unreachable),
    (403, b"<html>blocked</html>", Unreachable),
    (404, b'{"code": 10003, "message": "Unknown Channel"}', Undeliverable),
    (404, b'{"code": 10008, "message": "Unknown Message"}', Rejected),
    (404, b"nothing here", Unreachable),
    (413, b"", Rejected),
    (429, b"<html>slow down</html>", RateLimited),
    (429, b"[" * 100_000, RateLimited),
    (500, b"", Ambiguous),
    (503, b'{"code": 10003}', Ambiguous),
]


@pytest.mark.parametrize(("status", "body", "kind"), REFUSALS)
def test_a_refusal_means_what_its_code_says(status: int, body: bytes, kind: type[ChannelError]) -> None:
    """Status and code together distinguish a dead channel, a bad text, a bad token and a temporary error."""
    assert isinstance(translate_error(status, {}, body, name="send", needs="Send Messages"), kind)


async def test_editing_takes_buttons_away(simulator: Simulator, discord: Connection) -> None:
    """A decided question offers no choice any more; a deleted one cannot be edited."""
    sent = await discord.sender.send(ROOM, make_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    await discord.sender.edit(ROOM, sent.platform_id, make_reply("Approved"))
    (post,) = simulator.messages()
    assert (post.text, post.buttons, post.history) == ("Approved", [], ["May I?"])
    with pytest.raises(Rejected):
        await discord.sender.edit(ROOM, "4711", make_reply("x"))


async def test_the_answer_to_a_press_is_seen_by_that_person_only(
    simulator: Simulator, discord: Connection
) -> None:
    """A late press is answered without a public message."""
    sent = await discord.sender.send(ROOM, make_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await wait_until_connected(simulator)
        asked = await simulator.press(CHAT, sent.platform_id, "y")
        (press,) = await recorder.wait(1)
    assert isinstance(press, ButtonPress)
    await discord.sender.reply_privately(press, "too late")
    assert asked.notices == ["too late"]
    assert len(simulator.messages()) == 1


async def test_a_file_from_elsewhere_is_not_fetched(simulator: Simulator, discord: Connection) -> None:
    """An attachment's address that is not the CDN's is refused before any request."""
    place = simulator.world.channel(CHAT)
    stray = {"id": "5", "filename": "x", "url": "http://169.254.169.254/latest"}
    message = simulator.world.post(place, simulator.world.person(7), "", attachments=[stray])
    with pytest.raises(Rejected, match="not on Discord's file hosts"):
        async for _ in discord.sender.download(f"{CHAT}/{message['id']}/5"):
            pass


@given(st.text(alphabet="ab |-:#*`~![]()<>@\n\\", max_size=300))
def test_rendering_loses_no_word(text: str) -> None:
    """Every letter of a text is in what Discord is given, in order."""
    assert [c for c in markup.render(text) if c in "ab"] == [c for c in text if c in "ab"]


def test_tables_and_small_headings_are_made_readable() -> None:
    """A table becomes a code block, a fourth heading is bold, code stays as it is."""
    text = "#### Head\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\n#### not\n| a | b |\n|---|---|\n```"
    assert markup.render(text) == (
        "**Head**\n\n```\n| a | b |\n|---|---|\n| 1 | 2 |\n```\n\n```\n#### not\n| a | b |\n|---|---|\n```"
    )
