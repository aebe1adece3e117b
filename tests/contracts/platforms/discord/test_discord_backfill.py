"""What Discord's adapter keeps through restarts: how far rooms are read, and which commands still wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from channel_rigs import Ear, opened, receiving
from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.errors import NotPermitted, Unsupported
from channels.message import Address, Message, Reply
from memory_channel_state import MemoryNotes

CHAT, FORUM, ADA, BOB = 4004, 4005, 7001, 7002
ROOM = Address(channel="chn_contract", room=str(CHAT))


class Watched(MemoryNotes):
    """Notes that keep what had been accepted when each was put."""

    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self._ear = ear
        self.fails = False
        self.hangs = False
        self.puts: list[tuple[int, dict[str, str]]] = []

    async def put(self, notes: Mapping[str, str]) -> None:
        """Keep notes, or fail as a full disk would, or never come back."""
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise OSError("no space left on device")
        self.puts.append((len(self._ear.updates), dict(notes)))
        await super().put(notes)


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


def texts(ear: Ear) -> list[str]:
    """Return what was heard."""
    return [update.text for update in ear.updates if isinstance(update, Message)]


async def connected(simulator: Simulator, times: int = 1) -> None:
    """Wait until the bot has begun so many sessions."""
    await simulator.wait_until(lambda: simulator.sessions.identified == times)


async def until_deferred(simulator: Simulator, ear: Ear, count: int) -> None:
    """Wait until a command's acknowledgement has come back: what is said after it is heard after it."""
    await simulator.say(CHAT, "a sign")
    await ear.wait(count)


async def test_a_restart_reads_every_room_from_where_it_was(simulator: Simulator) -> None:
    """Private talk, threads that were archived and forum posts are read too, each from its last message."""
    notes, first, second = MemoryNotes(), Ear(), Ear()
    thread = await simulator.thread(CHAT)
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, first):
        await connected(simulator)
        for place in (CHAT, thread, ADA, BOB):
            await simulator.say(place, f"before {place}")
        await first.wait(4)
        simulator.sessions.forget()
    for place in (CHAT, thread, ADA):
        await simulator.say(place, f"after {place}")
    post = await simulator.forum_post(FORUM, "a new question")
    await simulator.archive(thread)
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, second):
        await second.wait(4)
        await simulator.say(BOB, "live")
        await second.wait(5)
    wanted = [f"after {CHAT}", f"after {thread}", f"after {ADA}", "a new question", "live"]
    assert sorted(texts(second)) == sorted(wanted)
    asked = next(one for one in second.updates if isinstance(one, Message) and one.text == "a new question")
    assert (asked.address.room, asked.address.thread) == (str(FORUM), str(post))


async def test_a_room_that_is_new_is_read_from_when_we_last_heard_anything(simulator: Simulator) -> None:
    """Away for longer than `backfill_minutes`: a thread that was posted meanwhile is read all the same."""
    notes, first, second = MemoryNotes(), Ear(), Ear()
    await simulator.pass_time(-3 * 3600)
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, first):
        await connected(simulator)
        await simulator.say(CHAT, "before")
        await first.wait(1)
        simulator.sessions.forget()
    await simulator.pass_time(3600)
    await simulator.forum_post(FORUM, "two hours ago")
    await simulator.pass_time(2 * 3600)
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, second):
        await second.wait(1)
    assert texts(second) == ["two hours ago"]


async def test_how_far_is_noted_after_it_was_accepted(simulator: Simulator) -> None:
    """A private room that is new is noted at once, always after its message; notes hold no words."""
    ear = Ear(refusals=1)
    notes = Watched(ear)
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, ear):
        await connected(simulator)
        number = await simulator.say(ADA, "secret words")
        await ear.wait(1)
        await simulator.say(CHAT, "next")
        await ear.wait(2)
        assert notes.puts[0][0] == 1
    assert number in notes.kept[f"seen/{ADA}"]
    assert f"seen/{CHAT}" in notes.kept, "the rest is noted when the connection is closed"
    assert not [note for note in notes.kept.values() if "words" in note or simulator.token in note]


async def test_notes_that_cannot_be_kept_cost_no_message(simulator: Simulator) -> None:
    """The store of notes is down: what is said arrives, and the notes follow when it is back."""
    ear = Ear()
    notes = Watched(ear)
    notes.fails = True
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, ear):
        await connected(simulator)
        await simulator.say(ADA, "one")
        await ear.wait(1)
        notes.fails = False
        await simulator.say(BOB, "two")
        await ear.wait(2)
    assert texts(ear) == ["one", "two"]
    assert {f"seen/{ADA}", f"seen/{BOB}"} <= set(notes.kept)


async def test_reading_is_bounded(simulator: Simulator) -> None:
    """After a long silence a room is read to a thousand messages, in order, by pages of a hundred."""
    notes, ear = MemoryNotes(), Ear()
    first = await simulator.say(ADA, "0")
    notes.kept[f"seen/{ADA}"] = f'["{first}", "", false]'
    for number in range(1, 1101):
        await simulator.say(ADA, str(number))
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, ear):
        await ear.wait(1000)
        await simulator.say(CHAT, "live")
        await ear.wait(1001)
    assert texts(ear) == [*(str(number) for number in range(1, 1001)), "live"]
    assert sum(name == "history" and str(ADA) in path for name, path, _ in simulator.calls) == 10


async def test_a_limit_while_reading_repeats_nothing(simulator: Simulator) -> None:
    """Many private rooms and a rate limit in between: each is read to its end, each message told once."""
    notes, ear = MemoryNotes(), Ear()
    for room in range(8001, 8006):
        first = await simulator.say(room, "before")
        notes.kept[f"seen/{room}"] = f'["{first}", "", false]'
        await simulator.say(room, f"after {room}")
    await simulator.limit("*", 6, 0.3)
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, ear):
        await ear.wait(5)
    assert sorted(texts(ear)) == [f"after {room}" for room in range(8001, 8006)]
    assert simulator.server.limits.refused > 0


async def test_a_command_that_waited_through_a_restart_is_tidied(simulator: Simulator) -> None:
    """Its "is thinking…" goes, and the answer is a message of the bot; no token is in the notes."""
    notes, ear = MemoryNotes(), Ear()
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, ear):
        await connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        await ear.wait(1)
        await until_deferred(simulator, ear, 2)
    told = ear.updates[0]
    assert isinstance(told, Message)
    assert asked.original in simulator.world.channel(CHAT).messages
    assert not [note for note in notes.kept.values() if asked.token in note]
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, Ear()):
        await connected(simulator, 2)
        await simulator.wait_until(lambda: asked.original not in simulator.world.channel(CHAT).messages)
        await connection.channel.send(told.address, Reply(text="long", key="k"))
    assert [post.text for post in simulator.messages()] == ["long"]


async def test_a_place_is_tidied_when_another_replica_answers(simulator: Simulator) -> None:
    """The answer went out by a process that does not hold the connection: nothing goes on "thinking"."""
    notes, ear = MemoryNotes(), Ear()
    async with (
        opened(plugin, simulator.settings(), notes) as holder,
        opened(plugin, simulator.settings(), notes) as other,
        receiving(holder, ear),
    ):
        await connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        await ear.wait(1)
        await until_deferred(simulator, ear, 2)
        told = ear.updates[0]
        assert isinstance(told, Message)
        await other.channel.send(told.address, Reply(text="long", key="k"))
        await until_deferred(simulator, ear, 3)
    assert asked.original not in simulator.world.channel(CHAT).messages
    assert [post.text for post in simulator.messages()] == ["long"]
    assert not [note for name, note in notes.kept.items() if name.startswith("deferred/") and note]


async def test_a_filled_place_is_not_filled_again_by_a_message(simulator: Simulator) -> None:
    """Killed between filling a place and recording it: the repeated delivery finds what it said."""
    notes, ear = MemoryNotes(), Ear()
    async with opened(plugin, simulator.settings(), notes) as connection, receiving(connection, ear):
        await connected(simulator)
        asked = await simulator.command(CHAT, "ask", "how long?")
        await ear.wait(1)
        await until_deferred(simulator, ear, 2)
        told = ear.updates[0]
        assert isinstance(told, Message)
        first = await connection.channel.send(told.address, Reply(text="long", key="k"))
    async with opened(plugin, simulator.settings(), notes) as connection:
        since = datetime.now(UTC) - timedelta(minutes=1)
        assert await connection.channel.find(told.address, "k", since=since) == first
        assert await connection.channel.send(told.address, Reply(text="long", key="k")) == first
    assert [post.id for post in simulator.messages()] == [first.platform_id]
    assert asked.original is not None


async def test_a_send_is_found_by_its_nonce_where_history_shows_it(simulator: Simulator) -> None:
    """After the nonce's window the message can still be found; without nonces it says it cannot tell."""
    async with opened(plugin, simulator.settings()) as connection:
        since = datetime.now(UTC) - timedelta(minutes=1)
        sent = await connection.channel.send(ROOM, Reply(text="once", key="k"))
        with pytest.raises(Unsupported, match="does not show"):
            await connection.channel.find(ROOM, "k", since=since)
        simulator.world.shows_nonces = True
        await simulator.pass_time(200)
        for number in range(150):
            await simulator.say(CHAT, str(number))
        assert await connection.channel.find(ROOM, "k", since=since) == sent
        assert await connection.channel.find(ROOM, "other", since=since) is None
        await simulator.deny(CHAT, "View Channels")
        with pytest.raises(NotPermitted):
            await connection.channel.find(ROOM, "k", since=since)


async def test_the_inbox_closes_in_time_with_a_store_that_hangs(simulator: Simulator) -> None:
    """The last notes are given half a second."""
    ear = Ear()
    notes = Watched(ear)
    async with opened(plugin, simulator.settings(), notes) as connection:
        task = asyncio.create_task(connection.inbox.run(ear.accept, receiving=lambda *_: None))
        await connected(simulator)
        await simulator.say(CHAT, "hello")
        await ear.wait(1)
        notes.hangs = True
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=1)
        assert done == {task}
