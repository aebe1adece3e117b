"""Deletions of conversations and endpoints beside others that use them at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from channels.message import Address
from databases import until_waiting
from delivery.database.engine import Connection, Database, RowDeleted
from delivery.database.tables import deliveries, destinations, outbox, streams
from delivery.database.tables import endpoints as endpoint_table
from delivery.deliveries import destinations as destination_store
from delivery.deliveries import store as delivery_store
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.route import RouteKind
from delivery.deliveries.store import NewDelivery
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType
from delivery.webhooks import endpoints
from delivery.webhooks.endpoints import Endpoint
from gateway.agents.port import Agent, AgentEvent, Finished, Tools, TurnInput
from gateway.agents.shell import ShellAgent
from gateway.conversations.direct_messages import send_direct
from gateway.records import webhooks
from gateway.records.rules.endpoint_rules import CallableUrl
from gateway.store.accounts import accounts, deletion
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.messages import MessageRow
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from gateway.turns.worker import REFERENCE_DELETED
from gateway.web.http.problems import translate_error
from statement_recorder import recorded_statements
from turn_worker import TurnWorkerHarness, open_turn_worker

HOOK = "whk_1"
ADDRESS = Address(channel="chn_1", room="1")
MESSAGE = MessageRow(
    id="msg_1",
    role="user",
    author="ann",
    text="hello",
    turn=None,
    attachments=(),
    created_at=datetime.now(UTC),
)


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """A conversation."""
    return await open_turn_worker(database, tmp_path)


async def test_a_conversation_is_deleted_while_its_turn_is_claimed(harness: TurnWorkerHarness) -> None:
    """The worker finds nothing to do, and reports no failure."""
    turn = await harness.add_turn()
    with capture_logs() as logs:
        async with harness.running(ShellAgent()):
            async with harness.database.begin() as connection:
                await deletion.delete_conversation(connection, turn.account, turn.conversation)
                await harness.wake()
                await until_waiting(harness.database)
            await harness.wake()
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def test_a_deletion_holds_the_stream_for_few_statements(harness: TurnWorkerHarness) -> None:
    """However many turns there were: every event of the conversation waits for it, and may hold its rows."""
    turns = [await harness.add_turn() for _ in range(30)]
    with recorded_statements() as recorder:
        async with harness.database.begin() as connection:
            await deletion.delete_conversation(connection, turns[0].account, turns[0].conversation)
    said = [one.text for one in recorder.executed]
    (locked,) = [place for place, text in enumerate(said) if text.startswith("DELETE FROM streams")]
    assert [text.split(" WHERE")[0] for text in said[locked:] if text.startswith("DELETE")] == [
        "DELETE FROM streams",
        "DELETE FROM deliveries",
        "DELETE FROM conversations",
    ]
    assert len(said) < len(turns)


async def test_a_change_of_a_deleted_conversation_is_a_conflict(harness: TurnWorkerHarness) -> None:
    """What begins with its message or its fence has a status that says so, on both databases."""
    errors: list[Exception] = []
    for change in (
        lambda connection: messages.add_message(connection, "cnv_deleted", MESSAGE),
        lambda connection: conversations.raise_fence(connection, "cnv_deleted"),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the kinds are different, the status is not
            async with harness.database.begin() as connection:
                await change(connection)
        errors.append(caught.value)
    assert [translate_error(error).status for error in errors] == [409, 409]


@dataclass(frozen=True)
class StaleReferenceAgent(Agent):
    """An agent with a tool that stores a message in a conversation that was deleted."""

    database: Database

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Store it."""
        async with self.database.begin() as connection:
            await messages.add_message(connection, "cnv_deleted", MESSAGE)
        yield Finished(output="")


async def test_a_turn_whose_reference_is_deleted_fails_with_a_reason(harness: TurnWorkerHarness) -> None:
    """The log has a warning without a traceback: no operator has to act."""
    turn = await harness.add_turn()
    with capture_logs() as logs:
        async with harness.running(StaleReferenceAgent(harness.database)):
            await harness.wake()
            ended = await harness.wait_for_state(turn, TurnState.FAILED)
    assert ended.error == REFERENCE_DELETED
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def _create_deliveries(harness: TurnWorkerHarness, count: int) -> list[str]:
    """Store an endpoint that is paused, and deliveries to it; returns their ids."""
    account = harness.agent.account
    endpoint = Endpoint(
        id=HOOK,
        account=account,
        url="http://example.org",
        events=("*",),
        secret=b"",
        created_at=datetime.now(UTC),
    )
    planned = [
        NewDelivery(
            account=account,
            event=Event.now(EventType.MESSAGE_COMPLETED, harness.conversation, {}),
            kind=RouteKind.WEBHOOK,
            target=HOOK,
            destination=HOOK,
            part=0,
            body=b"{}",
        )
        for _ in range(count)
    ]
    async with harness.database.begin() as connection:
        await endpoints.add(connection, endpoint)
        await delivery_store.create(connection, planned)
        until = datetime.now(UTC) + timedelta(hours=1)
        await destination_store.pause(connection, HOOK, account=account, until=until)
        return list((await connection.execute(select(deliveries.c.id))).scalars())


async def test_a_deleted_endpoint_leaves_nothing_to_send(harness: TurnWorkerHarness) -> None:
    """What waits for it is suppressed at once, what is being sent is not touched, its pause is gone."""
    sending, *waiting = await _create_deliveries(harness, 5)
    async with harness.database.begin() as connection:
        await delivery_store.set_state(connection, sending, state=DeliveryState.SENDING)
    async with harness.database.begin() as connection:
        assert await endpoints.delete_endpoint(connection, harness.agent.account, HOOK)
        assert not await endpoints.delete_endpoint(connection, harness.agent.account, HOOK)
    async with harness.database.read() as connection:
        rows = {row.id: row for row in await connection.execute(select(deliveries))}
        assert (await connection.execute(select(destinations))).all() == []
    assert {(rows[one].state, rows[one].error) for one in waiting} == {("suppressed", endpoints.DELETED)}
    assert rows[sending].state == "sending"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_the_deletion_of_an_endpoint_waits_for_no_worker(harness: TurnWorkerHarness) -> None:
    """A delivery and a pause that a worker has locked are left to it."""
    locked, *_waiting = await _create_deliveries(harness, 3)
    async with harness.database.begin() as worker, asyncio.timeout(20):
        await delivery_store.set_state(worker, locked, state=DeliveryState.RETRYING)
        await destination_store.mark_alive(worker, HOOK)
        await destination_store.pause(worker, HOOK, account=harness.agent.account, until=datetime.now(UTC))
        async with harness.database.begin() as connection:
            assert await endpoints.delete_endpoint(connection, harness.agent.account, HOOK)
    async with harness.database.read() as connection:
        states = (await connection.execute(select(deliveries.c.state).order_by(deliveries.c.state))).scalars()
        assert list(states) == ["retrying", "suppressed", "suppressed"]


async def test_an_endpoint_is_disabled_once(harness: TurnWorkerHarness) -> None:
    """Of several attempts that end so, one reports it; after a deletion, none does."""
    await _create_deliveries(harness, 2)
    async with harness.database.begin() as connection:
        reported = [await delivery_store.disable_endpoint(connection, HOOK, why="gone") for _ in range(3)]
        assert reported == [True, False, False]
        await endpoints.delete_endpoint(connection, harness.agent.account, HOOK)
        assert not await delivery_store.disable_endpoint(connection, HOOK, why=endpoints.DELETED)


async def test_what_is_written_while_an_account_is_deleted_goes_with_it(harness: TurnWorkerHarness) -> None:
    """A deletion waits until a conversation and a webhook are created, and leaves nothing of them."""
    account = harness.agent.account
    new = Conversation(id="cnv_new", account=account, agent=harness.agent.id, created_at=datetime.now(UTC))

    async def delete_account() -> bool:
        async with harness.database.begin() as connection:
            return await deletion.delete_account(connection, account)

    async def create_webhook(connection: Connection) -> None:
        url = CallableUrl("https://example.org")
        await webhooks.create(connection, harness.vault, account, url=url, events=("*",))

    async with harness.transactions.begin("test") as tx:
        await conversations.insert_conversation(tx.connection, new)
        await create_webhook(tx.connection)
        tx.emit(Event.now(EventType.MESSAGE_RECEIVED, new.id, {"text": "a secret"}))
        deleting = asyncio.ensure_future(delete_account())
        await until_waiting(harness.database)
    assert await deleting
    async with harness.database.begin() as connection:
        with pytest.raises(RowDeleted):
            await create_webhook(connection)
        with pytest.raises(RowDeleted):
            await send_direct(Transaction(connection), account, ADDRESS, "a code", key="1")
        for table in (streams, outbox, endpoint_table):
            assert (await connection.execute(select(table.c.account))).all() == []


async def test_the_deletion_of_an_account_waits_for_a_turn_that_ends(harness: TurnWorkerHarness) -> None:
    """The turn's end changes its row, and then records its usage: neither fails with a deadlock."""
    turn = await harness.add_turn(running=True)

    async def delete_account() -> bool:
        async with harness.database.begin() as connection:
            return await deletion.delete_account(connection, turn.account)

    async with harness.database.begin() as connection:
        await turns.lock(connection, turn.id)
        deleting = asyncio.ensure_future(delete_account())
        await until_waiting(harness.database)
        await accounts.lock_against_deletion(connection, turn.account)
    assert await deleting
