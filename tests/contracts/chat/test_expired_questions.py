"""Questions whose turn has ended, or that were decided before they were shown: their messages change."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from channels.message import RoomMigrated
from delivery.chat.shown_messages import ShownMessage, find_shown_in
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.deliveries import destinations, ordering
from delivery.deliveries.part import Part, decode_part
from delivery.events.event import EventType
from gateway.conversations.message_ids import approval_event_id
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns.approvals import Approval
from gateway.turns.histories import HistoryCache
from gateway.turns.turn_end import end_turn
from ingress_harness import IngressHarness, open_ingress_harness

QUESTION: dict[str, Any] = {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}
COMMAND: dict[str, Any] = {"command": "rm -r build"}


async def show(harness: IngressHarness, asked: Approval, platform_id: str, *, part: int = 0) -> None:
    """Record that the platform shows a part of the question."""
    async with harness.database.begin() as connection:
        await connection.execute(
            update(deliveries)
            .where(deliveries.c.event_id == approval_event_id(asked.id), deliveries.c.part == part)
            .values(state="delivered", platform_id=platform_id)
        )


async def end(harness: IngressHarness, state: TurnState) -> None:
    """End the turn that waits."""
    (turn,) = await harness.list_open_turns()
    async with harness.transactions.begin("turn.settle") as tx:
        fence = await conversations.raise_fence(tx.connection, turn.conversation)
        await end_turn(tx, turn, fence=fence, histories=HistoryCache(), state=state, error="no model")


async def list_parts(harness: IngressHarness, event_type: EventType) -> list[tuple[Part, str, str | None]]:
    """Return what is sent for events of a type: the part, its ordering key, and the message it changes."""
    async with harness.database.read() as connection:
        rows = await connection.execute(
            select(deliveries.c.body, deliveries.c.ordering_key, deliveries.c.platform_id)
            .where(deliveries.c.event_type == str(event_type))
            .order_by(deliveries.c.position)
        )
        return [(decode_part(row.body), row.ordering_key, row.platform_id) for row in rows]


@pytest.mark.parametrize(
    ("state", "said"), [(TurnState.CANCELLED, "was stopped"), (TurnState.FAILED, "failed")]
)
@pytest.mark.parametrize(
    ("tool", "args", "kind", "shown"),
    [
        ("ask_person", QUESTION, EventType.QUESTION_EXPIRED, "Tea or coffee?\n\nNo answer"),
        ("bash", COMMAND, EventType.APPROVAL_EXPIRED, "```\nrm -r build\n```\n\nNo decision"),
    ],
)
async def test_a_question_of_a_turn_that_ended_loses_its_buttons(
    database: Database,
    tool: str,
    args: dict[str, Any],
    kind: EventType,
    shown: str,
    state: TurnState,
    said: str,
) -> None:
    """Its message changes once and says why; where it was not shown, no message follows."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(args, tool=tool)
    await show(harness, asked, "31")
    await end(harness, state)
    ((part, key, _),) = await list_parts(harness, kind)
    assert part.text == f"{shown} is needed any more: the turn {said}."
    assert (part.buttons, part.only_edit, part.edits) == ((), True, approval_event_id(asked.id))
    assert ordering.is_quiet(key)
    kinds = [event.type for event in await harness.list_events()]
    assert kinds.index(kind) < len(kinds) - 1, "a reader of the turn stops at its end"
    assert "Too late: the turn that requested it has ended" in await harness.press(f"deny:{asked.id}")


async def test_a_turn_without_an_open_question_takes_none_back(database: Database) -> None:
    """A request that was decided is changed by its decision alone."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(COMMAND, tool="bash")
    await show(harness, asked, "31")
    await harness.press(f"approve:{asked.id}")
    await end(harness, TurnState.CANCELLED)
    assert await list_parts(harness, EventType.APPROVAL_EXPIRED) == []


@pytest.mark.parametrize("is_shown", [False, True])
async def test_a_decision_changes_its_question_also_if_that_is_shown_later(
    database: Database, *, is_shown: bool
) -> None:
    """A question that a rate limit delays kept its buttons, below the decision."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(COMMAND, tool="bash")
    if is_shown:
        await show(harness, asked, "31")
    await harness.press(f"deny:{asked.id}")
    ((part, key, platform_id),) = await list_parts(harness, EventType.APPROVAL_RESOLVED)
    assert platform_id == ("31" if is_shown else None)
    assert part.edits == (None if is_shown else approval_event_id(asked.id))
    assert (key == asked.conversation) is is_shown, "it holds nothing while it waits for its question"


async def test_the_message_with_the_buttons_is_the_last_of_a_long_question(database: Database) -> None:
    """The parts above it stay; while it is not sent, the change waits."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask({"command": "echo " + "long " * 900}, tool="bash")
    event, target = approval_event_id(asked.id), harness.address().encode()
    find = find_shown_in(harness.database)
    last = len(await list_parts(harness, EventType.APPROVAL_REQUESTED)) - 1
    assert last > 0
    await show(harness, asked, "31")
    assert await find(event, target) == ShownMessage(is_open=True)
    await show(harness, asked, "32", part=last)
    assert await find(event, target) == ShownMessage(platform_id="32")


async def test_a_chat_that_is_open_again_gets_the_question_and_its_change(database: Database) -> None:
    """The question that it missed is sent with its buttons, so what became of it must follow."""
    harness = await open_ingress_harness(database)
    await harness.ask(QUESTION)
    await end(harness, TurnState.CANCELLED)
    destination = harness.address().destination
    missed = [str(EventType.QUESTION_REQUESTED), str(EventType.QUESTION_EXPIRED)]
    async with harness.database.begin() as connection:
        await destinations.mark_dead(connection, destination, account=harness.account, why="kicked")
        await connection.execute(update(deliveries).values(state="suppressed", error="kicked"))
        assert await ordering.reopen(connection, harness.account, destination)
        rows = await connection.execute(
            select(deliveries.c.event_type)
            .where(deliveries.c.state == "pending", deliveries.c.event_type.in_(missed))
            .order_by(deliveries.c.position)
        )
        assert [row.event_type for row in rows] == missed


async def test_a_question_that_moved_with_its_room_is_found_there(database: Database) -> None:
    """Slack gives a shared channel another id, and messages keep theirs: what ends a question changes it."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(QUESTION)
    await show(harness, asked, "31")
    old, new = harness.address(), harness.address("moved")
    await harness.receive(RoomMigrated(key="moved", old=old, new=new))
    find = find_shown_in(harness.database)
    assert await find(approval_event_id(asked.id), new.encode()) == ShownMessage(platform_id="31")
