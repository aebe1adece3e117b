"""Which events a webhook is sent again, in pages: all that it subscribes to, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.deliveries import queries, routes
from delivery.deliveries.queries import ReplayFilter
from delivery.deliveries.transactions import Transaction
from delivery.events import outbox
from delivery.events.event import DELIVERY_EVENTS, Event, EventType
from gateway.conversations.submissions.conversation_lookup import create_conversation
from gateway.store.accounts import accounts
from gateway.store.accounts.accounts import Account

ACCOUNT = "acc_1"
PAGE = 4
TYPES = [EventType.TURN_QUEUED, EventType.DELIVERY_SUCCEEDED, EventType.TOOL_CALLED, EventType.AGENT_FINISHED]


async def record_events(database: Database) -> list[Event]:
    """Record events of two conversations, all at one moment, in a busy account."""
    now = utc_now()
    async with database.begin() as connection:
        tx = Transaction(connection)
        await accounts.add_account(connection, Account(id=ACCOUNT, name="one", created_at=now))
        talks = [(await create_conversation(tx, account=ACCOUNT, agent="agt_1")).id for _ in range(2)]
        planned = {talk: [replace(Event.now(one, talk, {}), time=now) for one in TYPES * 5] for talk in talks}
        recorded = await outbox.record(connection, planned)
    return [event for talk in recorded.values() for event in talk.events]


async def replay(database: Database, wanted: ReplayFilter) -> list[Event]:
    """Return the events of all pages."""
    found: list[Event] = []
    async with database.read() as connection:
        while True:
            page = await queries.list_events_to_replay(connection, wanted, limit=PAGE + 1)
            found += page[:PAGE]
            if len(page) <= PAGE:
                return found
            wanted = replace(wanted, cursor=page[PAGE - 1].id)


@pytest.mark.parametrize(
    "patterns", [("agent.finished",), ("*",), ("turn.*", "tool.called"), ("turn.queued", "agent.*")]
)
async def test_a_replay_returns_every_event_of_a_subscription(
    database: Database, patterns: tuple[str, ...]
) -> None:
    """Events that the endpoint does not subscribe to fill no page, and those of one moment are all found."""
    events = await record_events(database)
    found = await replay(database, ReplayFilter(account=ACCOUNT, patterns=patterns))
    expected = [
        event.id
        for event in events
        if event.type not in DELIVERY_EVENTS and routes.matches(patterns, str(event.type))
    ]
    assert sorted(event.id for event in found) == sorted(expected)


async def test_a_replay_by_id_leaves_out_deliveries_and_other_conversations(database: Database) -> None:
    """An endpoint of one conversation gets none of another one, and events about deliveries go nowhere."""
    events = await record_events(database)
    ids = [event.id for event in events[:4] + events[-4:]]
    own = events[0].conversation
    found = await replay(database, ReplayFilter(account=ACCOUNT, ids=ids, conversation=own))
    assert [event.type for event in found] == [one for one in TYPES if one not in DELIVERY_EVENTS]
    assert await replay(database, ReplayFilter(account="acc_2", ids=ids)) == []
