"""A destination without an order: deliveries that are slow, or that wait for a retry, hold no other one."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import delete
from structlog.testing import capture_logs

from channels.message import Address
from delivery.broker.port import WorkQueue
from delivery.database.engine import Database
from delivery.database.tables import streams
from delivery.deliveries import store
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.part import decode_part
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.retry_schedule import RetrySchedule
from delivery.workers.sends_in_flight import BATCH
from delivery.workers.sink_config import SinkConfig
from delivery_worker import DeliveryWorkerHarness, open_empty_database

ROOM = Address(channel="chn_1", room="7")
HOURLY = RetrySchedule(
    delays=(3600.0,), max_duration=86_400, jitter=0, honors_retry_after=True, operator_delay=900
)


class MoodySink(Sink):
    """A receiver that is slow to answer `slow`, fails `bad` for now, is gone at `gone`, accepts the rest."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.most = 0
        self.released = asyncio.Event()
        self.full = asyncio.Event()
        self.began = asyncio.Event()
        self._now = 0

    async def send(self, delivery: Delivery) -> Outcome:
        """Answer as the text says."""
        text = decode_part(delivery.body).text
        self._now += 1
        self.began.set()
        self.most = max(self.most, self._now)
        if self._now == BATCH:
            self.full.set()
        try:
            if text == "slow":
                await self.released.wait()
        finally:
            self._now -= 1
        self.texts.append(text)
        if text == "gone":
            return Outcome(kind=OutcomeKind.GIVE_UP, address_dead=True)
        return Outcome(kind=OutcomeKind.RETRY if text == "bad" else OutcomeKind.DELIVERED)


async def _unchanged(delivery: Delivery) -> bytes:
    return delivery.body


@dataclass(kw_only=True)
class UnorderedHarness(DeliveryWorkerHarness):
    """A worker for a destination without an order, as webhooks are by default."""

    complete_body: Callable[[Delivery], Awaitable[bytes]] = _unchanged

    def _sink_config(self) -> SinkConfig:
        return SinkConfig(
            queue=WorkQueue.DELIVER,
            sink=self.wrap_sink(MoodySink()),
            schedule=HOURLY,
            ordered=False,
            repeatable=True,
            complete_body=self.complete_body,
        )


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Return a database with the tables of deliveries."""
    async with open_empty_database(tmp_path / "one.db") as opened:
        yield opened


def harness(database: Database, sink: MoodySink) -> UnorderedHarness:
    """Return a worker that sends to this receiver."""
    return UnorderedHarness(database=database, bots={}, wrap_sink=lambda _sink: sink)


async def test_deliveries_that_wait_for_a_retry_hold_no_later_one(database: Database) -> None:
    """More deliveries than are sent at once wait for an hour, and the next one is sent."""
    sink = MoodySink()
    worker = harness(database, sink)
    async with worker.running():
        failing = await worker.create_deliveries(ROOM, ["bad"] * (BATCH + 5))
        await worker.wait_for_states(failing, "retrying")
        good = await worker.create_deliveries(ROOM, ["good"])
        await worker.wait_for_states(good, "delivered", seconds=60)
    assert sink.texts.count("bad") == BATCH + 5


async def test_a_slow_answer_holds_no_later_delivery(database: Database) -> None:
    """Others take the places that are free while one answer is awaited."""
    sink = MoodySink()
    worker = harness(database, sink)
    async with worker.running():
        slow = await worker.create_deliveries(ROOM, ["slow"])
        good = await worker.create_deliveries(ROOM, ["good"] * (3 * BATCH))
        await worker.wait_for_states(good, "delivered", seconds=60)
        assert "slow" not in sink.texts
        sink.released.set()
        await worker.wait_for_states(slow, "delivered", seconds=60)
    assert sink.texts.count("good") == 3 * BATCH


async def test_a_later_delivery_is_sent_while_an_answer_is_awaited(database: Database) -> None:
    """It was created after the only send in progress had begun."""
    sink = MoodySink()
    worker = harness(database, sink)
    async with worker.running():
        slow = await worker.create_deliveries(ROOM, ["slow"])
        async with asyncio.timeout(60):
            await sink.began.wait()
        good = await worker.create_deliveries(ROOM, ["good"])
        await worker.wait_for_states(good, "delivered", seconds=60)
        assert "slow" not in sink.texts
        sink.released.set()
        await worker.wait_for_states(slow, "delivered", seconds=60)


async def test_at_most_a_batch_is_in_flight(database: Database) -> None:
    """A receiver that never answers holds so many places and no more; every delivery is sent once."""
    sink = MoodySink()
    worker = harness(database, sink)
    async with worker.running():
        slow = await worker.create_deliveries(ROOM, ["slow"] * (2 * BATCH))
        async with asyncio.timeout(60):
            await sink.full.wait()
        sink.released.set()
        await worker.wait_for_states(slow, "delivered", seconds=60)
    assert sink.most == BATCH
    assert len(sink.texts) == 2 * BATCH


async def test_deliveries_of_a_deleted_conversation_end(database: Database) -> None:
    """Their outcomes are recorded with those of others, so that none of them is sent again."""
    sink = MoodySink()
    worker = harness(database, sink)
    async with worker.running():
        slow = await worker.create_deliveries(ROOM, ["slow"])
        good = await worker.create_deliveries(ROOM, ["slow"] * 3)
        async with asyncio.timeout(60):
            await sink.began.wait()
        async with database.begin() as connection:
            await connection.execute(delete(streams).where(streams.c.conversation == slow))
        sink.released.set()
        for conversation in (slow, good):
            await worker.wait_for_states(conversation, "delivered", seconds=60)
    assert sink.texts == ["slow"] * 4


async def test_a_delivery_that_is_dropped_while_it_is_claimed_stops_no_other(database: Database) -> None:
    """What is being sent goes on, and what was to be claimed with it is sent, each in its first attempt."""

    async def drop(delivery: Delivery) -> bytes:
        if decode_part(delivery.body).text == "dropped":
            async with database.begin() as connection:
                await store.set_state(connection, delivery.id, state=DeliveryState.SUPPRESSED)
        return delivery.body

    sink = MoodySink()
    worker = UnorderedHarness(database=database, bots={}, wrap_sink=lambda _sink: sink, complete_body=drop)
    async with worker.running():
        slow = await worker.create_deliveries(ROOM, ["slow"])
        async with asyncio.timeout(60):
            await sink.began.wait()
        good = await worker.create_deliveries(ROOM, ["good", "dropped", "good"])
        await worker.wait_for_states(good, "delivered", "suppressed", seconds=60)
        sink.released.set()
        (ended,) = await worker.wait_for_states(slow, "delivered", seconds=60)
    assert ended.attempts == 1
    assert Counter(sink.texts) == {"slow": 1, "good": 2}


async def test_a_long_backlog_of_a_dead_destination_ends(database: Database) -> None:
    """More deliveries than calls can be nested, of which one is ended at a time: the others are awaited."""
    sink = MoodySink()
    worker = harness(database, sink)
    with capture_logs() as logs:
        async with worker.running():
            await worker.create_deliveries(ROOM, ["slow"] * (BATCH - 1) + ["gone"])
            await worker.create_deliveries(ROOM, ["good"] * (sys.getrecursionlimit() + 100))
            last = await worker.create_deliveries(ROOM, ["good"])
            await worker.wait_for_states(last, "suppressed", seconds=120)
            sink.released.set()
    assert [entry for entry in logs if entry["log_level"] == "error"] == []
    assert "good" not in sink.texts


async def test_deliveries_are_claimed_and_settled_in_batches(database: Database) -> None:
    """The number of commits follows the number of batches, not that of deliveries."""
    sink, points = MoodySink(), Counter[str]()
    worker = UnorderedHarness(
        database=database,
        bots={},
        wrap_sink=lambda _sink: sink,
        checkpoint=lambda point: points.update([point]),
    )
    async with worker.running():
        good = await worker.create_deliveries(ROOM, ["good"] * (3 * BATCH))
        await worker.wait_for_states(good, "delivered", seconds=60)
    assert len(sink.texts) == 3 * BATCH
    assert points["delivery.claim.after_commit"] <= BATCH
    assert points["delivery.settle.after_commit"] <= BATCH
