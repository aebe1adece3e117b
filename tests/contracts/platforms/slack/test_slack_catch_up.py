"""After a gap the app reads what was said during it, once, in order, by the path of other updates."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from channels.message import Message
from channels.port import Connection
from channels.receiving.unread_rooms import UnreadRooms
from channels.slack import plugin
from channels.slack.api import connect
from channels.slack.receive.catch_up import CatchUp, workspace_of
from channels.slack.settings import SlackSettings
from channels.slack.simulator import Simulator
from channels.slack.thread_locations import RECEIVED_UNTIL, ThreadLocations
from channels.slack.workspaces import SingleWorkspace
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState
from egress.guard import TRUSTED
from slack_connections import SECRET, make_reply, thread_address

HOUR = 3600.0
MISSED = ["in a new thread", "in private", "in the known thread", "its reply"]


def texts(recorder: UpdateRecorder) -> list[str]:
    """Return the texts that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def receive_and_leave(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> UpdateRecorder:
    """Receive two messages and answer one, then be away for an hour; returns what was received."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        root = await simulator.say("C0ROOM", "question")
        await simulator.say("D0ADA", "private")
        await recorder.wait(2)
        await slack.sender.send(thread_address(root), make_reply("answer"))
        await simulator.wait_until_acknowledged()
    left = time.time() - HOUR
    notes.values[RECEIVED_UNTIL] = f"{left:.0f}"
    for post in simulator.world.posts:
        post.ts = post.raw["ts"] = f"{left - 600:.0f}.{post.ts.partition('.')[2]}"
    notes.values = {
        name.replace(root, simulator.world.posts[0].ts): value for name, value in notes.values.items()
    }
    return recorder


def say_unheard(simulator: Simulator) -> None:
    """Post what Slack sends no event for: a thread's reply, a new thread with a reply, a private message."""
    world = simulator.world
    known = world.posts[0].ts
    world.post("C0ROOM", "U0ADA", {"text": "in the known thread", "thread_ts": known})
    root = world.post("C0ROOM", "U0BOB", {"text": "in a new thread", "reply_count": 1})
    world.post("C0ROOM", "U0BOB", {"text": "its reply", "thread_ts": root.ts})
    world.post("D0ADA", "U0ADA", {"text": "in private"})
    world.post("C0ROOM", "U0BOT", {"text": "by the bot itself", "bot_id": "B0BOT"})


@pytest.mark.parametrize("mode", ["socket", "http"])
async def test_what_was_said_in_a_gap_is_read(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState, mode: str
) -> None:
    """Rooms, known threads, new threads and private chats; the bot's own messages and old ones are not."""
    before = await receive_and_leave(simulator, slack, notes)
    say_unheard(simulator)
    settings = simulator.settings(mode=mode, signing_secret=SECRET)
    recorder = UpdateRecorder()
    async with open_connection(plugin, settings, notes) as again, receiving(again, recorder):
        await recorder.wait(4)
    assert sorted(texts(recorder)) == MISSED
    rooms = {update.address.room for update in recorder.updates if isinstance(update, Message)}
    assert rooms == {"C0ROOM", "D0ADA"}
    assert not {update.key for update in recorder.updates} & {update.key for update in before.updates}


async def test_an_event_that_comes_late_has_the_key_of_the_history(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """A message that is read and then sent as an event is one message for the store, and comes after it."""
    await receive_and_leave(simulator, slack, notes)
    await simulator.say("C0ROOM", "<@U0BOT> told twice")
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await simulator.say("C0ROOM", "afterwards")
        while "afterwards" not in texts(recorder):
            await recorder.wait(len(recorder.updates) + 1)
    reported = [update for update in recorder.updates if isinstance(update, Message)]
    assert len({update.key for update in reported if update.text == "told twice"}) == 1
    assert texts(recorder)[0] == "told twice"
    assert reported[0].mentions_bot


async def test_a_message_that_cannot_be_stored_is_read_again(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """What could not be stored is read once more, before a new message of the room is stored."""
    await receive_and_leave(simulator, slack, notes)
    say_unheard(simulator)
    recorder = UpdateRecorder(refusals=1)
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await recorder.wait(4)
        await simulator.say("C0ROOM", "afterwards")
        await recorder.wait(5)
    assert recorder.refused == 1
    assert (sorted(texts(recorder)[:4]), texts(recorder)[4]) == (MISSED, "afterwards")


async def test_after_a_short_break_nothing_is_read(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """Slack repeats the events of some minutes itself."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("C0ROOM", "one")
        await recorder.wait(1)
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await simulator.say("C0ROOM", "two")
        await recorder.wait(2)
    assert not [method for method, _ in simulator.calls if method.startswith("conversations.")]


async def test_a_room_that_is_closed_to_the_bot_holds_up_no_other(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """A room that the bot has left is skipped."""
    await receive_and_leave(simulator, slack, notes)
    say_unheard(simulator)
    await simulator.kick("C0ROOM")
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await recorder.wait(1)
    assert texts(recorder) == ["in private"]


@pytest.mark.parametrize("failure", [{"status": 503}, {"error": "internal_error"}], ids=str)
async def test_a_history_that_fails_once_is_read(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState, failure: dict[str, Any]
) -> None:
    """Slack is asked again after a pause."""
    await receive_and_leave(simulator, slack, notes)
    say_unheard(simulator)
    await simulator.fail(method="conversations.history", **failure)
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await recorder.wait(4)
    assert sorted(texts(recorder)) == MISSED


async def read_unread(simulator: Simulator, notes: MemoryChannelState, *, attempts: int) -> list[str]:
    """Catch up as after a restart, with a number of reads; return the texts that were read."""
    read: list[str] = []

    async def dispatch(body: dict[str, Any]) -> bool:
        read.append(body["event"]["text"])
        return True

    unread = UnreadRooms(notes, delays=(*(0.0,) * attempts, HOUR), group_of=workspace_of)
    async with connect(SlackSettings.model_validate(simulator.settings()), TRUSTED) as api:
        catch_up = CatchUp(SingleWorkspace(api, await api.identify()), ThreadLocations(notes), unread)
        await catch_up.begin()
        calls = len(simulator.calls)
        reading = asyncio.create_task(catch_up.read(dispatch))
        await simulator.wait_until(lambda: len(simulator.calls) - calls >= attempts)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
    return read


@pytest.mark.parametrize("error", ["internal_error", "token_revoked"])
async def test_a_history_that_keeps_failing_is_read_after_a_restart(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState, error: str
) -> None:
    """It stays unread, although the app received since."""
    await receive_and_leave(simulator, slack, notes)
    simulator.world.post("D0ADA", "U0ADA", {"text": "in private"})
    await simulator.fail(error, method="conversations.history", times=1000)
    assert await read_unread(simulator, notes, attempts=1) == []
    assert float(notes.values[RECEIVED_UNTIL]) > time.time() - HOUR / 2
    simulator.faults.clear()
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await recorder.wait(1)
    assert texts(recorder) == ["in private"]


async def test_a_rate_limit_of_histories_holds_only_the_unread_rooms(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """A message of another room and a command are received; one of a room to be read waits its turn."""
    await receive_and_leave(simulator, slack, notes)
    await simulator.fail(
        "ratelimited", status=429, retry_after=60, times=1000, method="conversations.history"
    )
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await simulator.say("C0ROOM", "after what was missed")
        await simulator.say("C0NEW", "elsewhere")
        await recorder.wait(1)
        assert texts(recorder) == ["elsewhere"]
    assert len(simulator.sockets.waiting) == 1


async def test_a_room_with_a_new_message_is_read_first(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState
) -> None:
    """What was missed there is stored, then the new message: from the history, and as the event it was."""
    await receive_and_leave(simulator, slack, notes)
    simulator.world.post("D0ADA", "U0ADA", {"text": "missed"})
    await simulator.fail("internal_error", method="conversations.history", times=2)
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings(), notes) as again, receiving(again, recorder):
        await simulator.say("D0ADA", "new")
        await recorder.wait(3)
    assert texts(recorder) == ["missed", "new", "new"]
    assert len({update.key for update in recorder.updates}) == 2
