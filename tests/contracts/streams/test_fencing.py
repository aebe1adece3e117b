"""G5: a worker that lost a conversation or a delivery without noticing changes nothing of it any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, select

from channels.message import Address
from delivery.database.engine import Database
from delivery.database.tables import attempts, deliveries
from delivery.deliveries import attempt_store, store
from delivery.deliveries.attempt import DeliveryState, Transition
from delivery.deliveries.attempt_store import EndedAttempt
from delivery.deliveries.port import Outcome, OutcomeKind
from delivery.deliveries.route import RouteKind
from delivery.deliveries.store import DueDelivery, NewDelivery
from delivery.errors import LeaseLost
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from gateway.accounts import api_keys
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn

ROOM = Address(channel="chn_1", room="7")
SENT = Outcome(kind=OutcomeKind.DELIVERED, platform_id="1")
ACCEPTED = Outcome(kind=OutcomeKind.DELIVERED)
FAILED = Outcome(kind=OutcomeKind.RETRY, detail="no answer")


async def _conversation(database: Database) -> Conversation:
    async with database.begin() as connection:
        account, _ = await api_keys.create_account(connection, new_id("acc"))
        conversation = Conversation(
            id=new_id("cnv"), account=account.id, agent="agt_1", created_at=datetime.now(UTC)
        )
        await conversations.insert_conversation(connection, conversation)
        await outbox.create_stream(
            connection, conversation=conversation.id, account=account.id, agent="agt_1"
        )
    return conversation


def _turn(conversation: Conversation) -> Turn:
    return Turn(
        id=new_id("trn"),
        account=conversation.account,
        conversation=conversation.id,
        agent="agt_1",
        trigger="message",
        input="!echo hi",
        created_at=datetime.now(UTC),
    )


async def test_a_holder_from_before_changes_no_turn(database: Database) -> None:
    """Once another holder has raised the fence, claims, progress, pauses and ends of the old one fail."""
    conversation = await _conversation(database)
    turn = _turn(conversation)
    async with database.begin() as connection:
        await turns.insert_turn(connection, turn)
        old = await conversations.raise_fence(connection, conversation.id)
        new = await conversations.raise_fence(connection, conversation.id)
        assert not await turns.claim(connection, turn, fence=old, worker_id="old", crashes=0)
        assert await turns.claim(connection, turn, fence=new, worker_id="new", crashes=0)
        assert (await conversations.lock_fence(connection, conversation.id)).fence != old
        assert not await turns.save_progress(connection, turn, fence=old, state=b"old")
        assert not await turns.pause(connection, turn, fence=old, state=b"old")
        assert not await turns.quarantine(connection, turn, fence=old, crashes=9)
        assert not await turns.settle(connection, turn, fence=old, state=TurnState.FAILED)
        assert await turns.settle(connection, turn, fence=new, state=TurnState.COMPLETED)
        assert not await turns.settle(connection, turn, fence=new, state=TurnState.FAILED)
        found = await turns.get(connection, conversation.account, turn.id)
    assert found is not None
    assert (found.state, found.attempt) == (TurnState.COMPLETED, 1)


async def test_a_settled_turn_reports_whether_another_one_waits(database: Database) -> None:
    """Turns of the same conversation count, those that have ended do not."""
    conversation, other = await _conversation(database), await _conversation(database)
    first, second = _turn(conversation), _turn(conversation)
    async with database.begin() as connection:
        for turn in (first, second, _turn(other)):
            await turns.insert_turn(connection, turn)
        fence = await conversations.raise_fence(connection, conversation.id)
        settled = [
            await turns.settle(connection, turn, fence=fence, state=TurnState.COMPLETED)
            for turn in (first, second)
        ]
    assert [one.has_successor for one in settled if one is not None] == [True, False]


async def test_an_ended_attempt_reports_whether_more_waits_at_its_destination(database: Database) -> None:
    """Unfinished deliveries of the same destination count, and only those."""
    first, second = await _make_due_delivery(database), await _make_due_delivery(database)
    others = []
    for due in (first, second):
        number = await _begin_attempt(database, due)
        async with database.begin() as connection:
            ended = _ended(due, number, SENT, DeliveryState.DELIVERED)
            others.append((await attempt_store.end_attempts(connection, [ended])).has_others)
    assert others == [True, False]


async def test_a_batch_of_claims_is_refused_if_one_row_has_changed(database: Database) -> None:
    """Another worker has the lease then, so none of them is claimed."""
    first, second = await _make_due_delivery(database), await _make_due_delivery(database)
    await _begin_attempt(database, second)
    with pytest.raises(LeaseLost):
        await _begin_all(database, [first, second])
    async with database.read() as connection:
        states = [due.state for due in await store.list_open(connection, ROOM.destination, limit=9)]
    assert states == [DeliveryState.PENDING, DeliveryState.SENDING]


async def test_a_batch_of_outcomes_changes_what_no_other_worker_has_changed(database: Database) -> None:
    """Successes are recorded with a failure; a delivery that another worker has settled stays as it is."""
    dues = [await _make_due_delivery(database) for _ in range(4)]
    await _begin_all(database, dues)
    settled, failed, *accepted = dues
    assert await _end_attempt(database, settled, 1, SENT, DeliveryState.DELIVERED)
    ended = [_ended(due, 1, ACCEPTED, DeliveryState.DELIVERED) for due in (settled, *accepted)]
    async with database.begin() as connection:
        recorded = await attempt_store.end_attempts(
            connection, [*ended, _ended(failed, 1, FAILED, DeliveryState.RETRYING)]
        )
    assert recorded.changed == {due.delivery.id for due in (failed, *accepted)}
    async with database.read() as connection:
        (remaining,) = await store.list_open(connection, ROOM.destination, limit=9)
        logged = await connection.execute(select(attempts.c.outcome).order_by(attempts.c.outcome))
    assert (remaining.delivery.id, remaining.state) == (failed.delivery.id, DeliveryState.RETRYING)
    assert list(logged.scalars()) == ["delivered", "delivered", "delivered", "retry"]


async def _make_due_delivery(database: Database) -> DueDelivery:
    conversation = await _conversation(database)
    event = Event.now(EventType.MESSAGE_COMPLETED, conversation.id, {"text": "hi"})
    planned = NewDelivery(
        account=conversation.account,
        event=event,
        kind=RouteKind.CHAT,
        target=ROOM.encode(),
        destination=ROOM.destination,
        part=0,
        body=b"hi",
    )
    async with database.begin() as connection:
        await store.create(connection, [planned])
        return (await store.list_open(connection, ROOM.destination, limit=9))[-1]


async def _begin_attempt(database: Database, due: DueDelivery) -> int:
    await _begin_all(database, [due])
    return due.delivery.attempt + 1


async def _begin_all(database: Database, dues: Sequence[DueDelivery]) -> Sequence[DueDelivery]:
    async with database.begin() as connection:
        bodies = {due.delivery.id: b"hi" for due in dues}
        return await attempt_store.begin_attempts(connection, dues, now=datetime.now(UTC), bodies=bodies)


def _ended(due: DueDelivery, number: int, outcome: Outcome, state: DeliveryState) -> EndedAttempt:
    return EndedAttempt(
        delivery=due.delivery.id,
        number=number,
        outcome=outcome,
        transition=Transition(state=state),
        duration_ms=1.0,
    )


async def _end_attempt(
    database: Database, due: DueDelivery, number: int, outcome: Outcome, state: DeliveryState
) -> bool:
    async with database.begin() as connection:
        ended = [_ended(due, number, outcome, state)]
        return bool((await attempt_store.end_attempts(connection, ended)).changed)


async def test_a_worker_that_was_frozen_repeats_no_message(database: Database) -> None:
    """A delivery read before a freeze is not claimed after another worker claimed or delivered it."""
    seen = await _make_due_delivery(database)
    number = await _begin_attempt(database, seen)
    with pytest.raises(LeaseLost):
        await _begin_attempt(database, seen)
    assert await _end_attempt(database, seen, number, SENT, DeliveryState.DELIVERED)
    assert await _begin_all(database, [replace(seen, state=DeliveryState.SENDING)]) == []
    async with database.read() as connection:
        assert await store.list_open(connection, ROOM.destination, limit=9) == []


async def test_a_delivery_that_a_request_has_changed_stops_no_other(database: Database) -> None:
    """One was dropped and one deleted since they were read: the third is claimed, with its attempt."""
    dropped, deleted, kept = [await _make_due_delivery(database) for _ in range(3)]
    async with database.begin() as connection:
        await store.set_state(connection, dropped.delivery.id, state=DeliveryState.SUPPRESSED)
        await connection.execute(delete(deliveries).where(deliveries.c.id == deleted.delivery.id))
    assert await _begin_all(database, [dropped, deleted, kept]) == [kept]
    async with database.read() as connection:
        assert list((await connection.execute(select(attempts.c.delivery))).scalars()) == [kept.delivery.id]


async def test_one_claim_of_another_worker_stops_the_whole_batch(database: Database) -> None:
    """The worker has lost its lease: it sends nothing, and records no attempt."""
    dues = [await _make_due_delivery(database) for _ in range(3)]
    await _begin_attempt(database, dues[1])
    with pytest.raises(LeaseLost):
        await _begin_all(database, dues)
    async with database.read() as connection:
        found = await store.list_open(connection, ROOM.destination, limit=9)
        assert [one.state for one in found].count(DeliveryState.SENDING) == 1
        assert len((await connection.execute(select(attempts.c.delivery))).all()) == 1


async def test_a_worker_that_was_frozen_while_sending_makes_nothing_due_again(database: Database) -> None:
    """A failure that comes after another worker's success changes nothing; a late success still counts."""
    seen = await _make_due_delivery(database)
    first = await _begin_attempt(database, seen)
    async with database.read() as connection:
        (taken,) = await store.list_open(connection, ROOM.destination, limit=9)
    second = await _begin_attempt(database, taken)
    assert not await _end_attempt(database, seen, first, FAILED, DeliveryState.RETRYING)
    assert await _end_attempt(database, seen, first, SENT, DeliveryState.DELIVERED)
    assert not await _end_attempt(database, taken, second, FAILED, DeliveryState.RETRYING)
    async with database.read() as connection:
        assert await store.list_open(connection, ROOM.destination, limit=9) == []
