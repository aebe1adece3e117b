"""A channel for which Discord's API fails is read later; the other channels do not wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.message import Message, MessageDeleted
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState

FAILING, OTHER, ADA = 4004, 4005, 7001


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with two channels of a server."""
    async with simulate() as simulator:
        for channel in (FAILING, OTHER):
            await simulator.server_channel(channel)
        yield simulator


def _texts(recorder: UpdateRecorder) -> list[str]:
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def _wait_for(recorder: UpdateRecorder, is_complete: Callable[[list[str]], bool]) -> None:
    while not is_complete(_texts(recorder)):
        await recorder.wait(len(recorder.updates) + 1)


@asynccontextmanager
async def _receiving(
    simulator: Simulator, state: MemoryChannelState, recorder: UpdateRecorder
) -> AsyncIterator[None]:
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, recorder),
    ):
        yield


async def _receive_before(simulator: Simulator, state: MemoryChannelState) -> None:
    """Receive one message of each room, then end the session."""
    recorder = UpdateRecorder()
    async with _receiving(simulator, state, recorder):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        for room in (FAILING, OTHER, ADA):
            await simulator.say(room, "before")
        await recorder.wait(3)


async def _miss_a_message(simulator: Simulator) -> MemoryChannelState:
    """Let the bot miss a message in a room whose history fails from then on; return the channel's state."""
    state = MemoryChannelState()
    await _receive_before(simulator, state)
    simulator.sessions.clear()
    await simulator.say(FAILING, "missed")
    await simulator.fail(500, times=1000, name="history", channel=FAILING)
    return state


@pytest.mark.parametrize("failing", [FAILING, ADA])
async def test_missed_messages_of_a_failing_room_are_read_later(simulator: Simulator, failing: int) -> None:
    """Other rooms do not wait; new messages of the room follow the missed ones, and each arrives once."""
    state, recorder = MemoryChannelState(), UpdateRecorder()
    await _receive_before(simulator, state)
    simulator.sessions.clear()
    for room in (failing, OTHER):
        await simulator.say(room, f"missed {room}")
    await simulator.fail(500, times=1000, name="history", channel=failing)
    async with _receiving(simulator, state, recorder):
        await _wait_for(recorder, lambda texts: f"missed {OTHER}" in texts)
        await simulator.say(failing, "live")
        await simulator.say(OTHER, "other")
        await _wait_for(recorder, lambda texts: "other" in texts)
        simulator.server.faults.clear()
        await _wait_for(recorder, lambda texts: "live" in texts)
        await simulator.say(failing, "last")
        await _wait_for(recorder, lambda texts: "last" in texts)
    assert _texts(recorder) == [f"missed {OTHER}", "other", f"missed {failing}", "live", "last"]


async def test_changes_of_a_message_that_waits_follow_it(simulator: Simulator) -> None:
    """One that is deleted before its room is read is deleted after it was received, and not answered."""
    state, recorder = await _miss_a_message(simulator), UpdateRecorder()
    async with _receiving(simulator, state, recorder):
        await simulator.wait_until(lambda: simulator.sessions.identified == 2)
        said = await simulator.say(FAILING, "withdrawn")
        await simulator.purge(FAILING, [said])
        await simulator.say(OTHER, "other")
        await _wait_for(recorder, lambda texts: "other" in texts)
        assert [type(update) for update in recorder.updates] == [Message]
        simulator.server.faults.clear()
        await recorder.wait(4)
    assert _texts(recorder) == ["other", "missed", "withdrawn"]
    assert isinstance(recorder.updates[-1], MessageDeleted)


async def test_messages_that_wait_are_received_if_the_room_turns_out_unreadable(simulator: Simulator) -> None:
    """A bot without the permission to read the history receives the messages that waited."""
    state, recorder = await _miss_a_message(simulator), UpdateRecorder()
    async with _receiving(simulator, state, recorder):
        await simulator.wait_until(lambda: simulator.sessions.identified == 2)
        await simulator.say(FAILING, "live")
        await simulator.say(OTHER, "other")
        await _wait_for(recorder, lambda texts: "other" in texts)
        simulator.server.faults.clear()
        await simulator.fail(403, code=50013, times=1000, name="history", channel=FAILING)
        await _wait_for(recorder, lambda texts: "live" in texts)
    assert _texts(recorder) == ["other", "live"]


async def test_a_room_that_is_still_to_be_read_is_read_after_a_restart(simulator: Simulator) -> None:
    """The next process resumes the session, in which Discord does not list the room once more."""
    state, first, second = await _miss_a_message(simulator), UpdateRecorder(), UpdateRecorder()
    async with _receiving(simulator, state, first):
        await simulator.wait_until(lambda: simulator.sessions.identified == 2)
        await simulator.say(FAILING, "live")
        await simulator.say(OTHER, "other")
        await _wait_for(first, lambda texts: "other" in texts)
    simulator.server.faults.clear()
    async with _receiving(simulator, state, second):
        await _wait_for(second, lambda texts: "live" in texts)
    assert (_texts(first), _texts(second)) == (["other"], ["missed", "live"])
    assert simulator.sessions.resumed == 1
    assert not [note for name, note in state.values.items() if name.startswith("unread/") and note]


async def test_a_message_is_received_without_its_channels_type(simulator: Simulator) -> None:
    """A resumed session lists no channels, and the call that returns a channel fails."""
    state, recorder = MemoryChannelState(), UpdateRecorder()
    await _receive_before(simulator, state)
    await simulator.fail(500, times=1000, name="channel", channel=FAILING)
    async with _receiving(simulator, state, recorder):
        for text in ("one", "two"):
            await simulator.say(FAILING, text)
        await simulator.say(OTHER, "three")
        await recorder.wait(3)
    assert _texts(recorder) == ["one", "two", "three"]
    assert {update.address.room for update in recorder.updates if isinstance(update, Message)} == {
        str(FAILING),
        str(OTHER),
    }
    assert sum(name == "channel" and str(FAILING) in path for name, path, _ in simulator.calls) == 3
