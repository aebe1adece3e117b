"""G5: a worker that lost a conversation or a delivery without noticing changes nothing of it any more."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from channels.message import Address
from delivery.database.engine import Database
from delivery.deliveries import store
from delivery.deliveries.attempt import DeliveryState, Transition
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
FAILED = Outcome(kind=OutcomeKind.RETRY, detail="no answer")


async def _conversation(database: Database) -> Conversation:
    async with database.begin() as connection:
        account, _ = await api_keys.create_account(connection, "one")
        conversation = Conversation(
            id=new_id("cnv"), account=account.id, agent="agt_1", created_at=datetime.now(UTC)
        )
        await conversations.insert_conversation(connection, conversation)
        await outbox.create_stream(
            connection, conversation=conversation.id, account=account.id, agent="agt_1"
        )
    return conversation


async def test_a_holder_from_before_changes_no_turn(database: Database) -> None:
    """Once another holder has raised the fence, claims, progress, pauses and ends of the old one fail."""
    conversation = await _conversation(database)
    turn = Turn(
        id=new_id("trn"),
        account=conversation.account,
        conversation=conversation.id,
        agent="agt_1",
        trigger="message",
        input="!echo hi",
        created_at=datetime.now(UTC),
    )
    async with database.begin() as connection:
        await turns.insert_turn(connection, turn)
        old = await conversations.raise_fence(connection, conversation.id)
        new = await conversations.raise_fence(connection, conversation.id)
        assert not await turns.claim(connection, turn, fence=old, worker_id="old", crashes=0)
        assert await turns.claim(connection, turn, fence=new, worker_id="new", crashes=0)
        assert not await conversations.fence_is_current(connection, conversation.id, old)
        assert not await turns.save_progress(connection, turn, fence=old, state=b"old")
        assert not await turns.pause(connection, turn, fence=old, state=b"old")
        assert not await turns.quarantine(connection, turn, fence=old, crashes=9)
        assert not await turns.settle(connection, turn, fence=old, state=TurnState.FAILED)
        assert await turns.settle(connection, turn, fence=new, state=TurnState.COMPLETED)
        assert not await turns.settle(connection, turn, fence=new, state=TurnState.FAILED)
        found = await turns.get(connection, conversation.account, turn.id)
    assert found is not None
    assert (found.state, found.attempt) == (TurnState.COMPLETED, 1)


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
        (due,) = await store.list_open(connection, ROOM.destination, limit=9)
    return due


async def _begin_attempt(database: Database, due: DueDelivery) -> int:
    async with database.begin() as connection:
        return await store.begin_attempt(connection, due, now=datetime.now(UTC), body=b"hi")


async def _end_attempt(
    database: Database, due: DueDelivery, number: int, outcome: Outcome, state: DeliveryState
) -> bool:
    async with database.begin() as connection:
        transition = Transition(state=state)
        return await store.end_attempt(
            connection, due.delivery.id, number, outcome, transition, duration_ms=1.0
        )


async def test_a_worker_that_was_frozen_sends_nothing_that_was_sent_meanwhile(database: Database) -> None:
    """A delivery read before a freeze is not claimed after another worker claimed or delivered it."""
    seen = await _make_due_delivery(database)
    number = await _begin_attempt(database, seen)
    with pytest.raises(LeaseLost):
        await _begin_attempt(database, seen)
    assert await _end_attempt(database, seen, number, SENT, DeliveryState.DELIVERED)
    with pytest.raises(LeaseLost):
        await _begin_attempt(database, replace(seen, state=DeliveryState.SENDING))
    async with database.read() as connection:
        assert await store.list_open(connection, ROOM.destination, limit=9) == []


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
