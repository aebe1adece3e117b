"""The relay publishes what the outbox has and the stream lacks, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import update

from delivery.broker.memory_events import MemoryEvents
from delivery.database.engine import Database
from delivery.database.tables import streams
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from delivery.events.port import Tail
from delivery.events.read_barrier import wait_until_published
from delivery.events.relay import Relay
from delivery.fair_gate import working_for


async def _record_unpublished(database: Database, texts: list[str], conversation: str = "") -> str:
    """Record events without handing them to a relay; returns their conversation."""
    opened, conversation = conversation, conversation or new_id("cnv")
    async with database.begin() as connection:
        if not opened:
            await outbox.create_stream(connection, conversation=conversation, account="acc", agent="agt")
        events = [Event.now(EventType.MESSAGE_RECEIVED, conversation, {"text": word}) for word in texts]
        if events:
            await outbox.record(connection, {conversation: events})
    return conversation


async def _wait_until_published(database: Database, relay: Relay) -> None:
    """Wake the relay for what is behind, as the janitor does, until nothing is."""
    async with asyncio.timeout(20):
        while True:
            async with database.read() as connection:
                behind = await outbox.list_backlogs(connection)
            if not behind:
                return
            for backlog in behind:
                relay.catch_up(backlog)
            await asyncio.sleep(0.05)


async def _published_texts(stream: MemoryEvents, conversation: str, *, account: str = "acc") -> list[str]:
    return [
        one.event.data["text"] for one in await stream.read(conversation, after=0, limit=100, account=account)
    ]


@asynccontextmanager
async def _run_relay(relay: Relay) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(relay.run(stop))
        try:
            yield
        finally:
            stop.set()


async def test_events_that_were_not_enqueued_are_appended_in_order(database: Database) -> None:
    """Events another process recorded before it died, and those recorded later, come into the stream once."""
    stream = MemoryEvents()
    relay = Relay(database, stream, lambda _point: None)
    conversation = await _record_unpublished(database, ["a", "b"])
    async with _run_relay(relay):
        await _wait_until_published(database, relay)
        await _record_unpublished(database, ["c"], conversation)
        await _wait_until_published(database, relay)
    assert await _published_texts(stream, conversation) == ["a", "b", "c"]


async def test_a_mark_that_was_lost_is_made_again(database: Database) -> None:
    """What the stream has is marked as relayed, and not appended a second time."""
    stream = MemoryEvents()
    relay = Relay(database, stream, lambda _point: None)
    conversation = await _record_unpublished(database, ["a", "b"])
    async with _run_relay(relay):
        await _wait_until_published(database, relay)
        async with database.begin() as connection:
            lost = update(streams).where(streams.c.conversation == conversation).values(relayed_n=0)
            await connection.execute(lost)
        await _wait_until_published(database, relay)
    assert await _published_texts(stream, conversation) == ["a", "b"]


async def test_an_event_of_a_newer_version_is_published(database: Database) -> None:
    """Events after it are not held up."""
    stream = MemoryEvents()
    relay = Relay(database, stream, lambda _point: None)
    conversation = await _record_unpublished(database, [])
    newer = Event.now(EventType.read("pigeon.landed"), conversation, {"text": "a"})
    async with database.begin() as connection:
        await outbox.record(connection, {conversation: [newer]})
    await _record_unpublished(database, ["b"], conversation)
    async with _run_relay(relay):
        await _wait_until_published(database, relay)
    assert await _published_texts(stream, conversation) == ["a", "b"]


async def _wait_for_texts(
    stream: MemoryEvents, conversation: str, texts: list[str], *, account: str = "acc"
) -> None:
    """Wait until the stream has exactly these events, without a hint from the janitor."""
    async with asyncio.timeout(20):
        while await _published_texts(stream, conversation, account=account) != texts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _record_and_enqueue(
    database: Database, relay: Relay, texts: list[str], conversation: str, *, account: str = "acc"
) -> None:
    """Record events and hand them to this relay alone, as the process that wrote them does."""
    async with database.begin() as connection:
        events = [Event.now(EventType.MESSAGE_RECEIVED, conversation, {"text": word}) for word in texts]
        numbered = (await outbox.record(connection, {conversation: events}))[conversation].events
    with working_for(account):
        relay.enqueue(numbered)


async def test_a_reader_waits_for_what_is_recorded_and_not_yet_published(database: Database) -> None:
    """The barrier opens when the stream has the last recorded event, and gives up after its time-out."""
    stream = MemoryEvents()
    relay = Relay(database, stream, lambda _point: None)
    conversation = await _record_unpublished(database, ["a", "b"])
    assert not await wait_until_published(database, stream, conversation, account="acc", timeout=0.05)
    waiting = asyncio.create_task(
        wait_until_published(database, stream, conversation, account="acc", timeout=60.0)
    )
    async with _run_relay(relay):
        await _wait_until_published(database, relay)
    assert await waiting
    assert await _published_texts(stream, conversation) == ["a", "b"]
    empty = MemoryEvents()
    assert await wait_until_published(database, empty, conversation, account="acc", timeout=60.0)
    assert await wait_until_published(database, empty, "cnv_deleted", account="acc", timeout=60.0)


class TailCounter(MemoryEvents):
    """A stream that counts how often its leader is asked for the last event."""

    tails = 0

    async def tail(self, conversation: str, *, account: str) -> Tail | None:
        """Return the last event."""
        self.tails += 1
        return await super().tail(conversation, account=account)


async def test_a_relay_asks_the_stream_only_after_a_conflict(database: Database) -> None:
    """The database's positions are tried first; one that is behind is corrected by the stream's tail."""
    stream = TailCounter()
    conversations = [await _record_unpublished(database, []) for _ in range(5)]
    for word in ("a", "b", "c"):  # three processes, one after the other
        relay = Relay(database, stream, lambda _point: None)
        async with _run_relay(relay):
            for conversation in conversations:
                await _record_and_enqueue(database, relay, [word], conversation)
            await _wait_until_published(database, relay)
    assert stream.tails == 0
    behind = conversations[0]
    async with database.begin() as connection:
        first = (await stream.read(behind, after=0, account="acc"))[0].seq
        await connection.execute(
            update(streams).where(streams.c.conversation == behind).values(relayed_n=1, last_seq=first)
        )
    relay = Relay(database, stream, lambda _point: None)
    async with _run_relay(relay):
        await _record_and_enqueue(database, relay, ["d"], behind)
        await _wait_until_published(database, relay)
    assert await _published_texts(stream, behind) == ["a", "b", "c", "d"]
    assert stream.tails == 1


async def test_two_relays_publish_one_order(database: Database) -> None:
    """A relay whose position another one has overtaken reads the outbox again and loses no event."""
    stream = MemoryEvents()
    first, second = (Relay(database, stream, lambda _point: None) for _ in range(2))
    conversation = await _record_unpublished(database, [])
    async with _run_relay(first), _run_relay(second):
        await _record_and_enqueue(database, first, ["a"], conversation)
        await _wait_for_texts(stream, conversation, ["a"])
        await _record_and_enqueue(database, second, ["b", "c"], conversation)
        await _wait_for_texts(stream, conversation, ["a", "b", "c"])
        await _record_and_enqueue(database, first, ["d"], conversation)
        await _wait_for_texts(stream, conversation, ["a", "b", "c", "d"])


async def test_the_published_position_never_goes_back(database: Database) -> None:
    """A mark of a slower relay, which arrives late, changes nothing."""
    conversation = await _record_unpublished(database, ["a", "b", "c"])
    async with database.begin() as connection:
        await outbox.mark_published(connection, [(conversation, 3, 30)])
    async with database.begin() as connection:
        await outbox.mark_published(connection, [(conversation, 2, 20)])
        assert await outbox.last_position(connection, conversation) == (3, 30, "acc")


async def test_a_lost_event_is_not_marked_as_published(database: Database) -> None:
    """A fail-over has lost it: the event that gets its number next is published."""
    conversation = await _record_unpublished(database, ["a", "b"])
    async with database.begin() as connection:
        await outbox.mark_published(connection, [(conversation, 3, 30)])
        assert await outbox.last_position(connection, conversation) == (0, 0, "acc")


async def test_what_is_in_no_conversation_is_not_waited_for(database: Database) -> None:
    """A webhook's test event goes out at once: no stream will ever have it."""
    relay = Relay(database, MemoryEvents(), lambda _point: None)
    async with asyncio.timeout(5):
        assert await relay.get_seq(Event.now(EventType.WEBHOOK_TEST, "", {}), timeout=60.0) is None


class _HeldEvents(MemoryEvents):
    """A stream that confirms the events of some conversations only when they are released."""

    def __init__(self, held: set[str]) -> None:
        super().__init__()
        self._held = held
        self.release = asyncio.Event()

    async def append(self, event: Event, *, account: str, expected: int) -> int:
        """Append an event, for a held conversation after the release."""
        if event.conversation in self._held:
            await self.release.wait()
        return await super().append(event, account=account, expected=expected)


async def test_conversations_of_one_account_leave_workers_to_others(database: Database) -> None:
    """While every append of a busy account hangs, the event of another account is published."""
    async with database.begin() as connection:
        for number in range(20):
            await outbox.create_stream(connection, conversation=f"busy{number}", account="busy", agent="a")
        await outbox.create_stream(connection, conversation="quiet", account="quiet", agent="a")
    stream = _HeldEvents({f"busy{number}" for number in range(20)})
    relay = Relay(database, stream, lambda _point: None, workers=4)
    async with _run_relay(relay):
        for number in range(20):
            await _record_and_enqueue(database, relay, ["x"], f"busy{number}", account="busy")
        await _record_and_enqueue(database, relay, ["y"], "quiet", account="quiet")
        await _wait_for_texts(stream, "quiet", ["y"], account="quiet")
        assert await _published_texts(stream, "busy0", account="busy") == []
        stream.release.set()
        await _wait_for_texts(stream, "busy19", ["x"], account="busy")
