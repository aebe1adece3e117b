"""The gateway's session outlives the process: what happened in between arrives, and nothing is skipped."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.discord import plugin
from channels.discord.receive.gateway import BoundedDecompressor
from channels.discord.receive.gateway_sessions import GatewaySession, decode_session, encode_session
from channels.discord.rest import MAX_FRAME_BYTES
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.message import ButtonPress, Command, Message, Reaction
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState

CHAT, ADA = 4004, 7001


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


def received_texts(recorder: UpdateRecorder) -> list[str]:
    """Return the texts that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def test_a_new_process_receives_everything_of_the_gap(simulator: Simulator) -> None:
    """Messages, commands, presses and reactions that came while no process ran are replayed, in order."""
    state, first, second = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, first),
    ):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        question = await simulator.echo(CHAT, "May I?")
        await simulator.say(CHAT, "before")
        await first.wait(1)
    await simulator.say(CHAT, "meanwhile")
    asked = await simulator.command(CHAT, "status")
    await simulator.press(CHAT, question, "y")
    await simulator.react(CHAT, question, "\N{THUMBS UP SIGN}")
    await simulator.say(ADA, "in private")
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, second),
    ):
        await second.wait(5)
        await simulator.wait_until(lambda: asked.response_type is not None)
        await simulator.say(CHAT, "after")
        await second.wait(6)
    kinds = [type(update) for update in second.updates]
    assert kinds == [Message, Command, ButtonPress, Reaction, Message, Message]
    assert received_texts(second) == ["meanwhile", "in private", "after"]
    assert (simulator.sessions.identified, simulator.sessions.resumed) == (1, 1)


async def test_a_killed_process_is_followed_by_a_resume_that_skips_nothing(simulator: Simulator) -> None:
    """What was stored at the kill is behind what was accepted: known events come again, with their keys."""
    state, first, second = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, first),
    ):
        for number in range(5):
            await simulator.say(CHAT, str(number))
            await first.wait(number + 1)
        at_kill = MemoryChannelState()
        at_kill.values |= state.values
    await simulator.say(CHAT, "5")
    async with (
        open_connection(plugin, simulator.settings(), at_kill) as connection,
        receiving(connection, second),
    ):
        await second.wait(1)
        await simulator.say(CHAT, "6")
        while "6" not in received_texts(second):
            await second.wait(len(second.updates) + 1)
    keys = dict.fromkeys(update.key for update in (*first.updates, *second.updates))
    assert len(keys) == 7, "a repeated event has the key of the first time"
    assert received_texts(second)[-2:] == ["5", "6"]
    assert (simulator.sessions.identified, simulator.sessions.resumed) == (1, 1)


async def test_an_event_that_could_not_be_stored_is_not_passed(simulator: Simulator) -> None:
    """A process that ends while its store is down resumes before the event."""
    state, first, second = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, first),
    ):
        await simulator.say(CHAT, "0")
        await first.wait(1)
        first.refusals = 1_000
        await simulator.command(CHAT, "status")
        while not first.refused:
            async with first._received:
                await first._received.wait()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, second),
    ):
        await second.wait(1)
    assert [type(update) for update in (*first.updates, *second.updates)] == [Message, Command]
    assert simulator.sessions.identified == 1


async def test_other_intents_begin_a_session_of_their_own(simulator: Simulator) -> None:
    """A resumed session would keep the intents of the old settings."""
    state = MemoryChannelState()
    for times, others in enumerate(({}, {"message_content": False}, {"message_content": False}), start=1):
        recorder = UpdateRecorder()
        async with (
            open_connection(plugin, simulator.settings(**others), state) as connection,
            receiving(connection, recorder),
        ):
            await simulator.wait_until(lambda: bool(simulator.sessions.connected_shards()))
            await simulator.say(ADA, str(times))
            await recorder.wait(1)
    assert (simulator.sessions.identified, simulator.sessions.resumed) == (2, 1)


async def test_frames_are_compressed(simulator: Simulator) -> None:
    """The connection asks for a compressed stream."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        await simulator.say(CHAT, "hello")
        await recorder.wait(1)
        (session,) = simulator.sessions.sessions.values()
        assert session.connection is not None
        assert session.connection.is_compressed


def test_a_frame_does_not_inflate_without_bound() -> None:
    """A frame that would fill the memory ends the connection; one within the bound is read whole."""
    stream, decompressor = zlib.compressobj(), BoundedDecompressor()
    frame = stream.compress(b"x" * 1_000) + stream.flush(zlib.Z_SYNC_FLUSH)
    assert decompressor.decompress(frame[:5]) is None
    assert decompressor.decompress(frame[5:]) == "x" * 1_000
    bomb = stream.compress(bytes(MAX_FRAME_BYTES + 1)) + stream.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(ValueError, match="too long"):
        decompressor.decompress(bomb)


async def test_a_bot_in_many_servers_is_given_more_connections(simulator: Simulator) -> None:
    """Discord closes a single connection (4011): it is asked how many it needs, and each server has one."""
    other, state = 900_000_000_004_194_305, MemoryChannelState()
    await simulator.server_channel(5005, guild=other)
    simulator.sessions.required_shards = 2
    for _ in range(2):
        recorder = UpdateRecorder()
        async with (
            open_connection(plugin, simulator.settings(), state) as connection,
            receiving(connection, recorder),
        ):
            await simulator.wait_until(
                lambda: simulator.sessions.connected_shards() == {(0, 2), (1, 2)}, seconds=60
            )
            for place in (CHAT, 5005, ADA):
                await simulator.say(place, str(place))
            await recorder.wait(3)
            assert sorted(received_texts(recorder)) == ["4004", "5005", "7001"]
            assert recorder.states[-1]
    assert (simulator.sessions.identified, simulator.sessions.resumed) == (2, 2)
    assert sum(name == "gateway" for name, _, _ in simulator.calls) == 1


@settings(deadline=None)
@given(st.text(max_size=80) | st.from_regex(r"\[.*\]"))
def test_a_stored_session_of_anything_is_read_or_left(value: str) -> None:
    """What another version or bot wrote begins a new session."""
    assert not decode_session(value, "bot").can_resume
    known = GatewaySession("abc", "wss://gateway.discord.gg", 7)
    assert decode_session(encode_session(known, "bot"), "bot") == known
    assert not decode_session(encode_session(known, "bot"), "other").can_resume
