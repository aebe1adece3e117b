"""Deletions of many rows beside short transactions that need the same rows: both succeed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from databases import until_waiting
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database, TransactionConflict
from delivery.database.lock_timeouts import run_with_lock_timeout
from delivery.database.tables import deliveries, streams
from delivery.deliveries import store as delivery_store
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.route import RouteKind
from delivery.deliveries.store import NewDelivery
from delivery.events import outbox
from delivery.events.event import Event, EventType
from gateway.maintenance.deletion import ConversationDeletion
from gateway.store.schedule_tables import triggers
from gateway.store.tables import conversations
from gateway.web.http.problems import translate_error
from turn_worker import TurnWorkerHarness, open_turn_worker


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """A conversation."""
    return await open_turn_worker(database, tmp_path)


def deletion_of(harness: TurnWorkerHarness) -> ConversationDeletion:
    """Return the deletion of conversations; no turn runs."""
    return ConversationDeletion(harness.transactions, harness.stream, harness.jobs, cancel=lambda _turn: None)


async def _refer_to(connection: Connection, conversation: str) -> None:
    """Lock a conversation as the insertion of a turn does."""
    referred = select(conversations.c.id).where(conversations.c.id == conversation)
    await connection.execute(referred.with_for_update(read=True, key_share=True))


async def _count_event(connection: Connection, conversation: str) -> None:
    """Lock the stream of a conversation as an event does."""
    counted = update(streams).where(streams.c.conversation == conversation)
    await connection.execute(counted.values(last_n=streams.c.last_n + 1))


async def test_a_conversation_is_deleted_while_a_turn_is_queued(harness: TurnWorkerHarness) -> None:
    """Queuing locks the conversation and then its stream; the deletion locks the stream first."""
    database, conversation = harness.database, harness.conversation
    deletion = deletion_of(harness)
    async with database.begin() as connection:
        await _refer_to(connection, conversation)
        deleting = asyncio.create_task(deletion.delete(harness.agent.account, conversation))
        await until_waiting(database)
        await _count_event(connection, conversation)
    await deleting
    async with database.read() as connection:
        assert not (await connection.execute(select(conversations.c.id))).all()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_row_that_stays_locked_is_reported(harness: TurnWorkerHarness) -> None:
    """The work is repeated for a limited time."""
    database, runs = harness.database, list[int]()

    async def work(connection: Connection) -> None:
        runs.append(1)
        await _count_event(connection, harness.conversation)

    async with database.begin() as connection:
        await _count_event(connection, harness.conversation)
        with pytest.raises(TransactionConflict, match="another transaction changes the same rows"):
            await run_with_lock_timeout(database, work, seconds=1)
    assert len(runs) > 1


async def test_a_delivery_of_a_deleted_conversation_is_not_left(harness: TurnWorkerHarness) -> None:
    """A transaction that creates a delivery ends before the deletion begins, or finds no conversation."""
    database, conversation = harness.database, harness.conversation
    deletion = deletion_of(harness)
    event = Event.now(EventType.MESSAGE_COMPLETED, conversation, {"text": "hello"})
    planned = NewDelivery(
        account=harness.agent.account,
        event=event,
        kind=RouteKind.CHAT,
        target="room",
        destination="room",
        part=0,
        body=encode_part(Part(text="hello")),
    )
    async with database.begin() as connection:
        assert await outbox.record(connection, {conversation: [event]})
        deleting = asyncio.create_task(deletion.delete(harness.agent.account, conversation))
        await until_waiting(database)
        await delivery_store.create(connection, [planned])
    await deleting
    async with database.read() as connection:
        assert not (await connection.execute(select(deliveries.c.id))).all()
        assert await outbox.record(connection, {conversation: [event]}) == {}


async def test_what_refers_to_something_deleted_is_a_conflict(harness: TurnWorkerHarness) -> None:
    """A request that creates it gets a status that says so, on both databases."""
    row = {
        "id": "trg_1",
        "account": harness.agent.account,
        "conversation": "cnv_deleted",
        "template": "hello",
        "sealed": "",
        "created_by": "ann",
        "created_at": utc_now(),
    }
    with pytest.raises(IntegrityError) as caught:
        async with harness.database.begin() as connection:
            await connection.execute(insert(triggers).values(row))
    problem = translate_error(caught.value)
    assert (problem.status, "was deleted at this moment" in problem.detail) == (409, True)
