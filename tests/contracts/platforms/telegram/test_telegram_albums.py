"""Pictures sent at once are one message, however their updates come, and none is ever lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from channels.message import Message, Update
from channels.port import WebhookRequest
from channels.telegram import plugin
from channels.telegram.simulator import Simulator, simulate
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState
from channels.testing.rig import WEBHOOK_SECRET

PICTURES = (b"one", b"two", b"three")


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Telegram."""
    async with simulate() as simulator:
        simulator.world.room(7)
        yield simulator


def message_summaries(updates: list[Update]) -> list[tuple[str, int]]:
    """Return each message's text and its number of files."""
    return [(update.text, len(update.attachments)) for update in updates if isinstance(update, Message)]


async def test_an_album_is_one_message(simulator: Simulator) -> None:
    """All its pictures and its caption arrive together, before later messages."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(album_seconds=0.2)) as bot,
        receiving(bot, recorder),
    ):
        await simulator.send_album(7, PICTURES, caption="Compare these")
        await simulator.say(7, "well?")
        await recorder.wait(2)
        await simulator.wait_until(lambda: not simulator.world.updates)
    assert message_summaries(recorder.updates) == [("Compare these", 3), ("well?", 0)]


async def test_parts_that_come_in_separate_answers_are_one_message(simulator: Simulator) -> None:
    """A part that comes while the album is waited for belongs to it; Telegram is asked without a gap."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(album_seconds=1)) as bot, receiving(bot, recorder):
        await simulator.wait_until(lambda: _polls(simulator) == 2)
        await simulator.send_album(7, PICTURES[:1], caption="Compare these")
        await simulator.wait_until(lambda: simulator.answered_methods.count("getUpdates") == 2)
        await simulator.send_album(7, PICTURES[1:])
        await recorder.wait(1)
        await simulator.wait_until(lambda: not simulator.world.updates)
    assert message_summaries(recorder.updates) == [("Compare these", 3)]


async def test_other_rooms_do_not_wait_for_an_album(simulator: Simulator) -> None:
    """Messages of other chats arrive before an album that is still open, and are not repeated after it."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(album_seconds=1)) as bot, receiving(bot, recorder):
        await simulator.send_album(7, PICTURES)
        await simulator.say(8, "elsewhere")
        await recorder.wait(2)
        await simulator.wait_until(lambda: not simulator.world.updates)
    assert message_summaries(recorder.updates) == [("elsewhere", 0), ("", 3)]


async def test_a_full_album_is_not_waited_for(simulator: Simulator) -> None:
    """Ten files are all an album has."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(album_seconds=1)) as bot, receiving(bot, recorder):
        await simulator.send_album(7, [b"x"] * 10)
        await recorder.wait(1)
    assert message_summaries(recorder.updates) == [("", 10)]


async def test_an_album_survives_a_restart_in_its_middle(simulator: Simulator) -> None:
    """A part that was read and not yet handled is requested again by the next poller."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(album_seconds=1)) as bot, receiving(bot, recorder):
        await simulator.send_album(7, PICTURES[:1], caption="Compare these")
        await simulator.wait_until(lambda: "getUpdates" in simulator.answered_methods)
    assert recorder.updates == []
    await simulator.send_album(7, PICTURES[1:])
    async with (
        open_connection(plugin, simulator.settings(album_seconds=0.1)) as bot,
        receiving(bot, recorder),
    ):
        await recorder.wait(1)
    assert message_summaries(recorder.updates) == [("Compare these", 3)]


async def test_an_album_that_cannot_be_stored_comes_again_with_its_key(simulator: Simulator) -> None:
    """A full disk delays it; the key is the same each time."""
    keys: list[str] = []
    recorder = UpdateRecorder(refusals=2)

    async def accept(update: Update) -> None:
        assert isinstance(update, Message)
        keys.append(update.key)
        await recorder.accept(update)

    async with open_connection(plugin, simulator.settings(album_seconds=0.1)) as bot:
        task = asyncio.create_task(bot.receiver.run(accept, receiving=lambda *_: None))
        await simulator.send_album(7, PICTURES)
        await recorder.wait(1)
        task.cancel()
        await asyncio.wait({task})
    assert (len(keys), len(set(keys)), message_summaries(recorder.updates)) == (3, 1, [("", 3)])


def _polls(simulator: Simulator) -> int:
    return sum(name == "getUpdates" for name, _ in simulator.calls)


def webhook_settings(simulator: Simulator, **others: Any) -> dict[str, Any]:
    """Return settings for being posted to."""
    hook = {"mode": "webhook", "webhook_secret": WEBHOOK_SECRET, "webhook_url": "http://127.0.0.1:9/"}
    return simulator.settings(**hook, **others)


def webhook_request(update: dict[str, Any]) -> WebhookRequest:
    """Return a posted update."""
    headers = {"x-telegram-bot-api-secret-token": WEBHOOK_SECRET}
    return WebhookRequest(headers=headers, body=json.dumps(update).encode())


async def album_updates(simulator: Simulator) -> list[dict[str, Any]]:
    """Return the updates of an album as Telegram would post them."""
    await simulator.send_album(7, PICTURES, caption="Compare these")
    return list(simulator.world.updates.values())


async def test_posted_parts_are_one_message(simulator: Simulator) -> None:
    """Telegram posts the next part when the last is answered: each is answered, and all are handled once."""
    recorder, notes = UpdateRecorder(), MemoryChannelState()
    async with open_connection(plugin, webhook_settings(simulator, album_seconds=0.1), notes) as bot:
        for part in await album_updates(simulator):
            assert (await bot.receiver.receive(webhook_request(part), recorder.accept)).status == 200
        await recorder.wait(1)
    assert message_summaries(recorder.updates) == [("Compare these", 3)]
    assert not any(notes.values.values())


async def test_what_is_posted_after_an_album_comes_after_it(simulator: Simulator) -> None:
    """Another message of the same chat completes the album: it is handled at once, and first."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, webhook_settings(simulator, album_seconds=1)) as bot:
        parts = await album_updates(simulator)
        for part in parts:
            await bot.receiver.receive(webhook_request(part), recorder.accept)
        await simulator.say(8, "elsewhere")
        await simulator.say(7, "well?")
        for update in list(simulator.world.updates.values())[len(parts) :]:
            assert (await bot.receiver.receive(webhook_request(update), recorder.accept)).status == 200
    assert message_summaries(recorder.updates) == [("elsewhere", 0), ("Compare these", 3), ("well?", 0)]


async def test_a_posted_part_that_cannot_be_kept_is_not_acknowledged(simulator: Simulator) -> None:
    """2xx means stored, for a part as for a whole."""

    class Full(MemoryChannelState):
        async def set(self, notes: Any) -> None:
            raise OSError("no space left on device")

    async with open_connection(plugin, webhook_settings(simulator), Full()) as bot:
        first, *_ = await album_updates(simulator)
        assert (await bot.receiver.receive(webhook_request(first), UpdateRecorder().accept)).status == 503


async def test_posted_parts_survive_a_restart(simulator: Simulator) -> None:
    """Parts that were acknowledged and not yet handled are handled by the next receiver."""
    recorder, notes = UpdateRecorder(), MemoryChannelState()
    async with open_connection(plugin, webhook_settings(simulator, album_seconds=1), notes) as bot:
        for part in await album_updates(simulator):
            await bot.receiver.receive(webhook_request(part), recorder.accept)
    assert recorder.updates == []
    settings = webhook_settings(simulator, album_seconds=0.1)
    async with open_connection(plugin, settings, notes) as bot, receiving(bot, recorder):
        await recorder.wait(1)
    assert message_summaries(recorder.updates) == [("Compare these", 3)]


async def test_a_posted_album_that_cannot_be_stored_is_tried_again(simulator: Simulator) -> None:
    """An acknowledged album stays in the channel state until its turn is stored."""
    recorder = UpdateRecorder(refusals=1)
    async with open_connection(plugin, webhook_settings(simulator, album_seconds=0.1)) as bot:
        for part in await album_updates(simulator):
            await bot.receiver.receive(webhook_request(part), recorder.accept)
        await recorder.wait(1)
    assert (recorder.refused, message_summaries(recorder.updates)) == (1, [("Compare these", 3)])


async def test_a_late_part_is_a_message_of_its_own_and_a_repeated_one_is_not(simulator: Simulator) -> None:
    """A part that comes after the others were handled is not lost, and nothing is handled twice."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, webhook_settings(simulator, album_seconds=0.1)) as bot:
        *parts, late = await album_updates(simulator)
        for part in parts:
            await bot.receiver.receive(webhook_request(part), recorder.accept)
        await recorder.wait(1)
        assert (await bot.receiver.receive(webhook_request(parts[0]), recorder.accept)).status == 200
        assert (await bot.receiver.receive(webhook_request(late), recorder.accept)).status == 200
    assert message_summaries(recorder.updates) == [("Compare these", 2), ("", 1)]
