"""A person retries and stops turns in a chat, by button and by command."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import insert, select, update

from channels.inbox import commands as inbox_commands
from delivery.chat.shown_messages import ShownMessage, find_shown_in
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries, drafts
from delivery.deliveries.part import decode_part
from delivery.events.event import Event, EventType
from gateway.ingress.commands.chat_commands import ChatCommands
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_retries, turns
from gateway.store.turns.turns import Turn
from ingress_harness import BOB, IngressHarness, open_ingress_harness


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """An update handler that admits everybody."""
    return await open_ingress_harness(database)


async def delayed_turn(harness: IngressHarness) -> Turn:
    """Have a turn wait for its next attempt."""
    await harness.send_message("work")
    turn = await harness.start_first_turn()
    async with harness.database.begin() as connection:
        until = utc_now() + timedelta(hours=1)
        assert await turn_retries.delay(connection, turn.id, error="HTTP 500", until=until)
    return turn


async def failed_turn(harness: IngressHarness) -> Turn:
    """Have a turn fail."""
    await harness.send_message("work")
    turn = await harness.start_first_turn()
    async with harness.database.begin() as connection:
        fence = await conversations.raise_fence(connection, turn.conversation)
        assert await turns.settle(connection, turn, fence=fence, state=TurnState.FAILED, error="HTTP 401")
    return turn


async def test_a_waiting_turn_is_tried_again_by_button(harness: IngressHarness) -> None:
    """It runs at once instead of in an hour."""
    turn = await delayed_turn(harness)
    assert await harness.press(f"retry:{turn.id}", by=BOB) == "Trying again."
    (waiting,) = await harness.list_open_turns()
    assert not waiting.is_delayed


async def test_a_waiting_turn_is_tried_again_by_command(harness: IngressHarness) -> None:
    """`/status` says what it waits for, and `/retry` ends the wait."""
    await delayed_turn(harness)
    await harness.send_command("status")
    assert "Attempt 2 of `work` follows at" in harness.replies[-1]
    assert "HTTP 500" in harness.replies[-1]
    await harness.send_command("retry")
    assert harness.replies[-1] == "Trying again: `work`."
    (waiting,) = await harness.list_open_turns()
    assert not waiting.is_delayed


async def test_a_waiting_turn_is_stopped_by_button(harness: IngressHarness) -> None:
    """Its cancellation is requested once, here and in this process; another chat cannot do that."""
    turn = await delayed_turn(harness)
    await harness.send_message("elsewhere", address=harness.address("other"))
    assert await harness.press(f"stop:{turn.id}", room="other") == "This button is no longer valid."
    assert await harness.press(f"stop:{turn.id}") == "Stopping."
    (waiting,) = await harness.list_open_turns()
    assert (waiting.cancel, harness.cancelled) == (True, [turn.id])


@pytest.mark.parametrize("way", ["button", "command"])
async def test_a_failed_turn_is_repeated_once(harness: IngressHarness, way: str) -> None:
    """It gets one new turn with its input, however often a person asks."""
    turn = await failed_turn(harness)
    for _ in range(2):
        if way == "button":
            await harness.press(f"retry:{turn.id}")
        else:
            await harness.send_command("retry")
    (again,) = await harness.list_open_turns()
    assert (again.input, again.message) == ("work", turn.message)
    await harness.press(f"stop:{turn.id}")
    assert harness.replies[-1] == "There is nothing to stop: the turn is failed."


@pytest.mark.parametrize("drafted", ["", "half an answer"])
async def test_the_button_of_a_repeated_turn_goes_away(harness: IngressHarness, drafted: str) -> None:
    """The message of the failure says that the turn is tried again, below what the turn had written."""
    turn = await failed_turn(harness)
    where = harness.address().encode()
    async with harness.transactions.begin("turn.settle") as tx:
        tx.emit(Event.now(EventType.TURN_FAILED, turn.conversation, {"error": "HTTP 401"}, turn=turn.id))
    async with harness.database.begin() as connection:
        failure = update(deliveries).where(deliveries.c.event_type == str(EventType.TURN_FAILED))
        shown = failure.values(state="delivered", platform_id="31").returning(deliveries.c.id)
        reported = (await connection.execute(shown)).scalar_one()
        if drafted:
            written = {"message": "msg_1", "target": where, "account": turn.account, "platform_id": "31"}
            ended = {"turn": turn.id, "shown": drafted, "ended_by": reported, "created_at": utc_now()}
            await connection.execute(insert(drafts).values(**written, **ended))
    await harness.press(f"retry:{turn.id}")
    await harness.press(f"retry:{turn.id}")
    async with harness.database.read() as connection:
        queued = deliveries.c.event_type == str(EventType.TURN_QUEUED)
        (body,) = (await connection.execute(select(deliveries.c.body).where(queued))).scalars().all()
    part = decode_part(body)
    assert (part.text, part.buttons) == ("The request failed: HTTP 401\n\nIt is tried again.", ())
    assert (part.only_edit, part.needs_edits) == (True, True)
    found = await find_shown_in(harness.database)(part.edits or "", where)
    assert found == ShownMessage(platform_id="31", text=drafted)


async def test_nothing_to_retry_is_said(harness: IngressHarness) -> None:
    """A conversation without a failed or waiting turn has nothing to retry."""
    await harness.send_message("work")
    await harness.send_command("retry")
    assert harness.replies[-1] == "There is nothing to retry."


def test_every_platform_has_every_command() -> None:
    """A command that the gateway has is one on each platform."""
    names = set(ChatCommands.NAMES)
    assert inbox_commands.COMMANDS - {"start"} == names
