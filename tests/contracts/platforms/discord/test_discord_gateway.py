"""Discord's connection stays: nothing ends the adapter but what only a person can mend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.errors import ChannelError, Unauthorized, Undeliverable
from channels.inbox.commands import DESCRIPTIONS
from channels.message import ButtonPress, Command, Message
from channels.port import Connection, WebhookRequest
from channels.receiving.session_pace import (
    MAX_PAUSE_SECONDS,
    PAUSE_SECONDS,
    WINDOW_SECONDS,
    session_wait,
)
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.features import wait_for_update

CHAT = 4004


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


def received_texts(recorder: UpdateRecorder) -> list[str]:
    """Return the updates that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def test_an_order_to_connect_again_is_followed_by_a_resume(
    simulator: Simulator, discord: Connection
) -> None:
    """Discord moves its clients now and then (7): the session goes on and nothing is missed."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.say(CHAT, "before")
        await recorder.wait(1)
        await simulator.reconnect()
        await simulator.say(CHAT, "meanwhile")
        await simulator.wait_until(lambda: simulator.sessions.resumed == 1)
        await recorder.wait(2)
    assert (received_texts(recorder), simulator.sessions.identified) == (["before", "meanwhile"], 1)


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_refused_session_is_resumed_or_replaced(
    simulator: Simulator, discord: Connection, resumable: bool
) -> None:
    """Discord states (9) whether the session can resume; if not, a new one backfills missed messages."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.say(CHAT, "before")
        await recorder.wait(1)
        await simulator.invalidate(resumable=resumable)
        await simulator.say(CHAT, "meanwhile")
        await recorder.wait(2)
    sessions = simulator.sessions
    assert received_texts(recorder) == ["before", "meanwhile"]
    assert (sessions.resumed, sessions.identified) == ((1, 1) if resumable else (0, 2))


@pytest.mark.parametrize("code", [1000, 1001, 4000, 4001, 4002, 4005, 4008])
async def test_a_close_is_followed_by_a_resume(simulator: Simulator, discord: Connection, code: int) -> None:
    """Any close code resumes, unless it means that the session or the bot is at fault."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.say(CHAT, "before")
        await recorder.wait(1)
        await simulator.drop(code=code)
        await simulator.say(CHAT, "after")
        await recorder.wait(2)
    assert (received_texts(recorder), simulator.sessions.resumed) == (["before", "after"], 1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (4004, "token"),
        (4010, "shard"),
        (4011, "too many servers"),
        (4012, "version"),
        (4013, "intents"),
        (4014, "Message Content Intent"),
    ],
)
async def test_what_only_the_operator_can_mend_is_reported(
    simulator: Simulator, discord: Connection, code: int, words: str
) -> None:
    """The adapter ends with the reason and what to do about it, in words."""
    simulator.sessions.fatal = code
    async with asyncio.timeout(20):
        with pytest.raises(Unauthorized, match=words):
            await discord.receiver.run(UpdateRecorder().accept, receiving=lambda *_: None)


async def test_without_the_intent_it_asks_for_less(simulator: Simulator) -> None:
    """An application without the privileged intent is refused, unless the settings do without it."""
    simulator.sessions.granted = 0
    async with open_connection(plugin, simulator.settings()) as connection:
        with pytest.raises(Unauthorized, match=r"message_content = false"):
            await connection.receiver.run(UpdateRecorder().accept, receiving=lambda *_: None)
    recorder = UpdateRecorder()
    settings = simulator.settings(message_content=False)
    async with open_connection(plugin, settings) as connection, receiving(connection, recorder):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        await simulator.say(7001, "in private")
        await recorder.wait(1)
    assert received_texts(recorder) == ["in private"]


@settings(deadline=None)
@given(st.lists(st.floats(0, 10_000), max_size=32), st.floats(10_000, 20_000))
def test_sessions_are_begun_ever_more_slowly(times: list[float], now: float) -> None:
    """The first at once, the next ones further and further apart, never more than a bound."""
    wait = session_wait(sorted(times), now)
    assert 0 <= wait <= MAX_PAUSE_SECONDS
    if all(now - when >= WINDOW_SECONDS for when in times):
        assert wait == 0


def test_a_storm_of_refusals_begins_no_thousand_sessions() -> None:
    """A day of sessions that end at once is far below Discord's limit."""
    now = 0.0
    times: list[float] = []
    while now < 86_400:
        now += session_wait(times[-32:], now)
        times.append(now)
        now += 0.1
    assert times[1] - times[0] >= PAUSE_SECONDS
    assert len(times) < 800


@asynccontextmanager
async def receive_and_reply(
    simulator: Simulator, connection: Connection, recorder: UpdateRecorder
) -> AsyncIterator[None]:
    """Receive, and answer what can be answered before it counts as accepted, as a gateway does."""

    async def accept(update: Any) -> None:
        await recorder.accept(update)
        if isinstance(update, Command | ButtonPress):
            with suppress(ChannelError):
                await connection.sender.reply_privately(update, "all is well")

    task = asyncio.create_task(connection.receiver.run(accept, receiving=lambda *_: None))
    await simulator.wait_until(lambda: simulator.sessions.identified == 1)
    yield
    await simulator.say(CHAT, "a sign that all before it is over")
    await recorder.wait(len(recorder.updates) + 1)
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize("kind", ["command", "press"])
async def test_an_answer_while_it_is_accepted_is_the_acknowledgement(
    simulator: Simulator, discord: Connection, kind: str
) -> None:
    """One call, seen by that person alone: nothing "thinks" beside it, and nothing is acknowledged twice."""
    recorder = UpdateRecorder(refusals=1)
    number = await simulator.echo(CHAT, "May I?")
    async with receive_and_reply(simulator, discord, recorder):
        asked = await (
            simulator.command(CHAT, "status") if kind == "command" else simulator.press(CHAT, number, "y")
        )
        await simulator.wait_until(lambda: asked.response_type is not None)
    assert recorder.refused == 1, "it was acknowledged only when it was stored"
    assert (asked.response_type, asked.notices) == (4, ["all is well"])
    answers = {"callback", "follow_up", "fill", "create"}
    assert [name for name, _, _ in simulator.calls if name in answers] == ["callback"]


@pytest.mark.parametrize("kind", ["command", "press"])
@pytest.mark.parametrize("failure", ["missing", "server error", "cut before", "cut after"])
async def test_an_answer_survives_a_failed_acknowledgement(
    simulator: Simulator, discord: Connection, kind: str, failure: str
) -> None:
    """If the answer cannot be the acknowledgement, it is sent after it, and never twice."""
    ear = UpdateRecorder()
    number = await simulator.echo(CHAT, "May I?")
    match failure:
        case "missing":
            await simulator.fail(404, name="callback", message="404: Not Found")
        case "server error":
            await simulator.fail(503, name="callback")
        case _:
            await simulator.cut(name="callback", after=failure == "cut after")
    async with receive_and_reply(simulator, discord, ear):
        asked = await (
            simulator.command(CHAT, "status") if kind == "command" else simulator.press(CHAT, number, "y")
        )
        await simulator.wait_until(lambda: asked.response_type is not None)
    shown = [post.text for post in simulator.messages() if post.text != "May I?"]
    assert [*shown, *asked.notices] == ["all is well"]


async def test_a_command_that_cannot_be_acknowledged_is_answered_in_the_channel(
    simulator: Simulator, discord: Connection
) -> None:
    """The answer is a message of the bot, and nothing "thinks" below it."""
    ear = UpdateRecorder()
    await simulator.fail(503, name="callback", times=2)
    async with receive_and_reply(simulator, discord, ear):
        await simulator.command(CHAT, "status")
        await simulator.wait_for_messages(1, chat=CHAT)
    assert [post.text for post in simulator.messages()] == ["all is well"]
    assert sum(name == "callback" for name, _, _ in simulator.calls) == 2


async def test_a_confidential_answer_that_is_late_goes_to_the_private_conversation(
    simulator: Simulator, discord: Connection
) -> None:
    """It never fills the placeholder that everybody sees, nor is it sent to the channel."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        asked = await simulator.command(CHAT, "signin")
        command = await wait_for_update(recorder, Command)
        await simulator.wait_until(lambda: asked.response_type is not None)
    assert isinstance(command, Command)
    await discord.sender.reply_confidentially(command, "for you")
    assert [(post.chat, post.text) for post in simulator.messages() if post.text] == [(7, "for you")]
    await simulator.fail(403, code=50007, name="create", message="Cannot send messages to this user")
    with pytest.raises(Undeliverable):
        await discord.sender.reply_confidentially(command, "for you")


async def test_a_command_is_answered_in_its_place_or_by_the_bot(
    simulator: Simulator, discord: Connection
) -> None:
    """The answer fills the acknowledged placeholder; after the token expires it is a message, once."""
    recorder = UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        asked = [await simulator.command(CHAT, name) for name in ("status", "jobs")]
        await recorder.wait(2)
        await simulator.wait_until(lambda: all(one.response_type == 5 for one in asked))
        await simulator.say(CHAT, "a sign")
        await recorder.wait(3)
    first, second = (update for update in recorder.updates if isinstance(update, Command))
    await discord.sender.reply_privately(first, "well")
    del simulator.world.interactions[asked[1].token]
    for _ in range(2):
        await discord.sender.reply_privately(second, "none")
    assert [post.text for post in simulator.messages()] == ["well", "none"]
    assert asked[0].original is not None
    assert simulator.messages()[0].id == asked[0].original["id"]


async def test_a_form_is_opened_by_a_posted_press(simulator: Simulator) -> None:
    """A button that asks for words opens a form at once, and only what was written is accepted."""
    settings = simulator.settings(mode="interactions", public_key=simulator.public_key)
    recorder = UpdateRecorder()
    asked = {"type": 3, "data": {"custom_id": "?02noWhy not?"}, "message": {"id": "5"}}
    _, raw = simulator.create_interaction(CHAT, asked)
    body = json.dumps(raw).encode()
    async with open_connection(plugin, settings) as connection:
        request = WebhookRequest(headers=simulator.signature_headers(body), body=body)
        answer = await connection.receiver.receive(request, recorder.accept)
    form = json.loads(answer.body)
    assert (form["type"], form["data"]["title"], recorder.updates) == (9, "Why not?", [])


async def test_commands_are_registered_when_they_differ(simulator: Simulator) -> None:
    """All at once, and not again while they are the same; those of other programs stay."""
    other = {"name": "weather", "description": "Tell the weather", "type": 1}
    simulator.world.commands["weather"] = {**other, "id": "5"}
    for _ in range(2):
        async with (
            open_connection(plugin, simulator.settings()) as connection,
            receiving(connection, UpdateRecorder()),
        ):
            await simulator.wait_until(lambda: len(simulator.world.commands) == len(DESCRIPTIONS) + 2)
            await simulator.wait_until(lambda: simulator.sessions.identified > 0)
            await simulator.say(CHAT, "hello")
        simulator.sessions.identified = 0
    assert set(simulator.world.commands) == {"ask", *DESCRIPTIONS, "weather"}
    assert sum(name == "overwrite" for name, _, _ in simulator.calls) == 1
