"""What Discord's adapter stores across restarts: how far rooms are read, and which commands wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.errors import Ambiguous, NotPermitted, Unsupported
from channels.message import Address, Message, Reply
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState

CHAT, FORUM, ADA, BOB = 4004, 4005, 7001, 7002
ROOM = Address(channel="chn_contract", room=str(CHAT))


class RecordingChannelState(MemoryChannelState):
    """A state store that records what had been accepted at each write."""

    def __init__(self, recorder: UpdateRecorder) -> None:
        super().__init__()
        self._ear = recorder
        self.fails = False
        self.hangs = False
        self.puts: list[tuple[int, dict[str, str]]] = []

    async def set(self, values: Mapping[str, str]) -> None:
        """Keep notes, or fail as a full disk would, or never come back."""
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise OSError("no space left on device")
        self.puts.append((len(self._ear.updates), dict(values)))
        await super().set(values)


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


def received_texts(recorder: UpdateRecorder) -> list[str]:
    """Return the updates that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def wait_until_connected(simulator: Simulator, times: int = 1) -> None:
    """Wait until the bot has begun so many sessions."""
    await simulator.wait_until(lambda: simulator.sessions.identified == times)


async def wait_until_deferred(simulator: Simulator, recorder: UpdateRecorder, count: int) -> None:
    """Wait until a command is acknowledged: later messages are received after it."""
    await simulator.say(CHAT, "a sign")
    await recorder.wait(count)


async def test_a_restart_reads_every_room_from_where_it_was(simulator: Simulator) -> None:
    """Private talk, threads that were archived and forum posts are read too, each from its last message."""
    notes, first, second = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    thread = await simulator.thread(CHAT)
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, first),
    ):
        await wait_until_connected(simulator)
        for place in (CHAT, thread, ADA, BOB):
            await simulator.say(place, f"before {place}")
        await first.wait(4)
        simulator.sessions.clear()
    for place in (CHAT, thread, ADA):
        await simulator.say(place, f"after {place}")
    post = await simulator.forum_post(FORUM, "a new question")
    await simulator.archive(thread)
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, second),
    ):
        await second.wait(4)
        await simulator.say(BOB, "live")
        await second.wait(5)
    wanted = [f"after {CHAT}", f"after {thread}", f"after {ADA}", "A post\n\na new question", "live"]
    assert sorted(received_texts(second)) == sorted(wanted)
    asked = next(
        one for one in second.updates if isinstance(one, Message) and one.text == "A post\n\na new question"
    )
    assert (asked.address.room, asked.address.thread) == (str(FORUM), str(post))


async def test_a_new_room_is_read_from_the_last_received_event(simulator: Simulator) -> None:
    """After more than `backfill_minutes` away, a thread that was created in the meantime is still read."""
    notes, first, second = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    await simulator.pass_time(-3 * 3600)
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, first),
    ):
        await wait_until_connected(simulator)
        await simulator.say(CHAT, "before")
        await first.wait(1)
        simulator.sessions.clear()
    await simulator.pass_time(3600)
    await simulator.forum_post(FORUM, "two hours ago")
    await simulator.pass_time(2 * 3600)
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, second),
    ):
        await second.wait(1)
    assert received_texts(second) == ["A post\n\ntwo hours ago"]


async def test_a_new_channel_of_a_bot_answers_nothing_again(simulator: Simulator) -> None:
    """It has no positions of an earlier channel, so each room is read from the bot's last message there."""
    first, second = UpdateRecorder(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), MemoryChannelState()) as connection,
        receiving(connection, first),
    ):
        await wait_until_connected(simulator)
        for place in (CHAT, ADA):
            await simulator.say(place, f"before {place}")
        await first.wait(2)
        for update in first.updates:
            assert isinstance(update, Message)
            await connection.sender.send(update.address, Reply(text="an answer", key=update.key[-8:]))
        simulator.sessions.clear()
    for place in (CHAT, BOB):
        await simulator.say(place, f"after {place}")
    async with (
        open_connection(plugin, simulator.settings(), MemoryChannelState()) as connection,
        receiving(connection, second),
    ):
        await second.wait(1)
        for place in (ADA, BOB):
            await simulator.say(place, f"live {place}")
        await second.wait(4)
    assert received_texts(second) == [f"after {CHAT}", f"live {ADA}", f"after {BOB}", f"live {BOB}"]


async def test_how_far_is_noted_after_it_was_accepted(simulator: Simulator) -> None:
    """A private room that is new is noted at once, always after its message; notes hold no words."""
    recorder = UpdateRecorder(refusals=1)
    notes = RecordingChannelState(recorder)
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, recorder),
    ):
        await wait_until_connected(simulator)
        number = await simulator.say(ADA, "secret words")
        await recorder.wait(1)
        await simulator.say(CHAT, "next")
        await recorder.wait(2)
        (first, *_) = [received for received, values in notes.puts if f"seen/{ADA}" in values]
        assert first == 1
    assert number in notes.values[f"seen/{ADA}"]
    assert f"seen/{CHAT}" in notes.values, "the rest is noted when the connection is closed"
    assert not [note for note in notes.values.values() if "words" in note or simulator.token in note]


async def test_notes_that_cannot_be_kept_cost_no_message(simulator: Simulator) -> None:
    """With the state store down messages arrive, and the markers are written when it is back."""
    recorder = UpdateRecorder()
    notes = RecordingChannelState(recorder)
    notes.fails = True
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, recorder),
    ):
        await wait_until_connected(simulator)
        await simulator.say(ADA, "one")
        await recorder.wait(1)
        notes.fails = False
        await simulator.say(BOB, "two")
        await recorder.wait(2)
    assert received_texts(recorder) == ["one", "two"]
    assert {f"seen/{ADA}", f"seen/{BOB}"} <= set(notes.values)


async def test_reading_is_bounded(simulator: Simulator) -> None:
    """After a long silence a room is read to a thousand messages, in order, by pages of a hundred."""
    notes, recorder = MemoryChannelState(), UpdateRecorder()
    first = await simulator.say(ADA, "0")
    notes.values[f"seen/{ADA}"] = f'["{first}", "", false]'
    for number in range(1, 1101):
        await simulator.say(ADA, str(number))
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, recorder),
    ):
        await recorder.wait(1000)
        await simulator.say(CHAT, "live")
        await recorder.wait(1001)
    assert received_texts(recorder) == [*(str(number) for number in range(1, 1001)), "live"]
    assert sum(name == "history" and str(ADA) in path for name, path, _ in simulator.calls) == 10


async def test_a_limit_while_reading_repeats_nothing(simulator: Simulator) -> None:
    """Many private rooms and a rate limit in between: each is read to its end, each message once."""
    notes, recorder = MemoryChannelState(), UpdateRecorder()
    for room in range(8001, 8006):
        first = await simulator.say(room, "before")
        notes.values[f"seen/{room}"] = f'["{first}", "", false]'
        await simulator.say(room, f"after {room}")
    await simulator.limit("*", 6, 0.3)
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, recorder),
    ):
        await recorder.wait(5)
    assert sorted(received_texts(recorder)) == [f"after {room}" for room in range(8001, 8006)]
    assert simulator.server.limits.refused > 0


async def test_a_command_that_waited_through_a_restart_is_answered_in_its_place(simulator: Simulator) -> None:
    """Its "is thinking…" stays until the answer replaces it; the token is among the secrets alone."""
    notes, recorder = MemoryChannelState(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, recorder),
    ):
        await wait_until_connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        await recorder.wait(1)
        await wait_until_deferred(simulator, recorder, 2)
    reported = recorder.updates[0]
    assert isinstance(reported, Message)
    assert asked.original in simulator.world.channel(CHAT).messages
    assert not [note for note in notes.values.values() if asked.token in note]
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, again := UpdateRecorder()),
    ):
        await simulator.say(CHAT, "I wait")
        await again.wait(1)
        await connection.sender.send(reported.address, Reply(text="long", key="k"))
    assert (asked.original or {})["content"] == "long"
    assert [post.text for post in simulator.messages()] == ["long"]


async def test_a_place_that_an_earlier_version_stored_is_filled(simulator: Simulator) -> None:
    """Its token has no nonce of a message beside it."""
    notes, recorder = MemoryChannelState(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, recorder),
    ):
        await wait_until_connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        await recorder.wait(1)
        await wait_until_deferred(simulator, recorder, 2)
        for name, value in (await notes.secrets.list("")).items():
            await notes.secrets.set(name, json.dumps(json.loads(value)[:5]))
        reported = recorder.updates[0]
        assert isinstance(reported, Message)
        await connection.sender.send(reported.address, Reply(text="long", key="k"))
    assert (asked.original or {})["content"] == "long"


async def test_another_replica_fills_the_places_in_their_order(simulator: Simulator) -> None:
    """The answers go out by a process that does not hold the connection; each is in its question's place."""
    notes, recorder = MemoryChannelState(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), notes) as holder,
        open_connection(plugin, simulator.settings(), notes) as other,
        receiving(holder, recorder),
    ):
        await wait_until_connected(simulator)
        asked = []
        for number, words in enumerate(("how long?", "how wide?"), 1):
            asked.append(await simulator.command(CHAT, "ask", words, user=6 + number))
            await recorder.wait(number)
            await wait_until_deferred(simulator, recorder, number + 1)
        for number, text in enumerate(("long", "wide")):
            reported = recorder.updates[number]
            assert isinstance(reported, Message)
            sender = (other, holder)[number].sender
            await sender.send(reported.address, Reply(text=text, key=text))
    assert [(one.original or {})["content"] for one in asked] == ["long", "wide"]
    assert [post.text for post in simulator.messages()] == ["long", "wide"]


@pytest.mark.parametrize("is_carried_out", [True, False])
async def test_another_replica_repeats_a_fill_that_may_have_arrived(
    simulator: Simulator, *, is_carried_out: bool
) -> None:
    """The connection broke while a placeholder was filled: another replica fills it, and sends none."""
    notes, recorder = MemoryChannelState(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), notes) as holder,
        open_connection(plugin, simulator.settings(), notes) as other,
        receiving(holder, recorder),
    ):
        await wait_until_connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        await recorder.wait(1)
        await wait_until_deferred(simulator, recorder, 2)
        reported = recorder.updates[0]
        assert isinstance(reported, Message)
        await simulator.cut(name="fill", after=is_carried_out)
        with pytest.raises(Ambiguous):
            await holder.sender.send(reported.address, Reply(text="long", key="k"))
        await other.sender.send(reported.address, Reply(text="long", key="k"))
        await other.sender.send(reported.address, Reply(text="more", key="l"))
    assert (asked.original or {})["content"] == "long"
    assert [post.text for post in simulator.messages()] == ["long", "more"]


async def test_a_filled_place_is_not_filled_again_by_a_message(simulator: Simulator) -> None:
    """Killed between filling a placeholder and recording it: the repeated delivery finds its message."""
    notes, recorder = MemoryChannelState(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), notes) as connection,
        receiving(connection, recorder),
    ):
        await wait_until_connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        await recorder.wait(1)
        await wait_until_deferred(simulator, recorder, 2)
        reported = recorder.updates[0]
        assert isinstance(reported, Message)
        first = await connection.sender.send(reported.address, Reply(text="long", key="k"))
    async with open_connection(plugin, simulator.settings(), notes) as connection:
        since = datetime.now(UTC) - timedelta(minutes=1)
        assert await connection.sender.find(reported.address, "k", since=since) == first
        assert await connection.sender.send(reported.address, Reply(text="long", key="k")) == first
    assert [post.id for post in simulator.messages()] == [first.platform_id]
    assert asked.original is not None


async def test_a_send_is_found_by_its_nonce_where_history_shows_it(simulator: Simulator) -> None:
    """After the nonce's window the message can still be found; without nonces the lookup is unsupported."""
    async with open_connection(plugin, simulator.settings()) as connection:
        since = datetime.now(UTC) - timedelta(minutes=1)
        sent = await connection.sender.send(ROOM, Reply(text="once", key="k"))
        with pytest.raises(Unsupported, match="does not show"):
            await connection.sender.find(ROOM, "k", since=since)
        simulator.world.shows_nonces = True
        await simulator.pass_time(200)
        for number in range(150):
            await simulator.say(CHAT, str(number))
        assert await connection.sender.find(ROOM, "k", since=since) == sent
        assert await connection.sender.find(ROOM, "other", since=since) is None
        await simulator.deny(CHAT, "View Channels")
        with pytest.raises(NotPermitted):
            await connection.sender.find(ROOM, "k", since=since)


async def test_a_blank_nonce_is_not_an_absent_message(simulator: Simulator) -> None:
    """A history that shows empty nonces does not show whether a message was sent."""
    simulator.world.shows_nonces = True
    async with open_connection(plugin, simulator.settings()) as connection:
        since = datetime.now(UTC) - timedelta(minutes=1)
        await connection.sender.send(ROOM, Reply(text="once", key="k"))
        for message in simulator.world.bot_messages:
            message["nonce"] = None
        with pytest.raises(Unsupported):
            await connection.sender.find(ROOM, "other", since=since)


async def test_the_inbox_closes_in_time_with_a_store_that_hangs(simulator: Simulator) -> None:
    """The last notes are given half a second."""
    recorder = UpdateRecorder()
    notes = RecordingChannelState(recorder)
    async with open_connection(plugin, simulator.settings(), notes) as connection:
        task = asyncio.create_task(connection.receiver.run(recorder.accept, receiving=lambda *_: None))
        await wait_until_connected(simulator)
        await simulator.say(CHAT, "hello")
        await recorder.wait(1)
        notes.hangs = True
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=1)
        assert done == {task}
