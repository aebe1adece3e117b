"""What people show on Discord beside text: polls, stickers, components; and channels of other kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.message import Message, QuotedMessage
from channels.testing.connections import UpdateRecorder, open_connection, receiving

STAGE, CHAT, ADA = 4013, 4004, 7001
ANSWERS = [{"answer_id": number, "poll_media": {"text": one}} for number, one in enumerate(("Tea", "Coffee"))]
POLL = {"poll": {"question": {"text": "What do we drink?"}, "answers": ANSWERS, "allow_multiselect": False}}
STICKER = {"sticker_items": [{"id": "749054660769218631", "name": "Wave", "format_type": 3}]}
CARD = [
    {
        "type": 17,
        "components": [
            {
                "type": 9,
                "components": [{"type": 10, "content": "**Build 7**"}],
                "accessory": {"type": 2, "label": "Open", "style": 5, "url": "https://ci.example.org/7"},
            },
            {"type": 14},
            {"type": 10, "content": "failed"},
        ],
    }
]


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord without a server."""
    async with simulate() as simulator:
        yield simulator


@pytest.mark.parametrize(
    ("text", "shared", "expected"),
    [
        ("", POLL, "Poll: What do we drink?\n- Tea\n- Coffee"),
        ("", STICKER, "[sticker] Wave"),
        ("hello", STICKER, "hello\n[sticker] Wave"),
    ],
    ids=["a poll", "a sticker", "a sticker with text"],
)
async def test_what_is_no_text_is_described(
    simulator: Simulator, text: str, shared: dict[str, Any], expected: str
) -> None:
    """The agent reads the words; the message is not ignored."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        await simulator.say(ADA, text, **shared)
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    assert update.text == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"components": CARD, "flags": 1 << 15}, "**Build 7**\nfailed"),
        ({"embeds": [{"title": "Build 7", "description": "failed"}]}, "Build 7\nfailed"),
        (POLL, "Poll: What do we drink?\n- Tea\n- Coffee"),
    ],
    ids=["components", "an embed", "a poll"],
)
async def test_a_reply_quotes_what_a_message_shows(
    simulator: Simulator, content: dict[str, Any], expected: str
) -> None:
    """A message of another program may have no text of its own."""
    recorder = UpdateRecorder()
    program = {"id": "9001", "username": "builds", "bot": True}
    replied = {"id": "4500", "channel_id": str(ADA), "author": program, "content": "", **content}
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        await simulator.say(ADA, "what does this mean?", type=19, referenced_message=replied)
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    assert isinstance(update.quoted, QuotedMessage)
    assert (update.text, update.quoted.text) == ("what does this mean?", expected)


async def test_a_server_that_the_bot_joins_later_is_received(simulator: Simulator) -> None:
    """READY lists no server; the chat of a stage channel is a room as any other."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        for chat, kind in ((CHAT, 0), (STAGE, 13)):
            await simulator.server_channel(chat, kind=kind)
            await simulator.say(chat, "hello")
        updates = await recorder.wait(2)
    rooms = [(one.address.room, one.address.thread) for one in updates if isinstance(one, Message)]
    assert rooms == [(str(CHAT), None), (str(STAGE), None)]
