"""G3: who decides about a command in a chat, by button, word or thumb, on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from channels.message import Address, Author, ButtonPress, Command, RoomKind, RoomMigrated
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.events.event import Event, EventType
from gateway.agents.port import PendingToolCall
from gateway.conversations import approvals, outdated_approvals
from gateway.conversations.approvals import AlreadyDecided
from gateway.conversations.approver_rules import ApproverRule, may_approve_own_turn
from gateway.conversations.call_binding import call_digest
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from ingress_harness import ANN, BOB, IngressHarness, open_ingress_harness

CALL = PendingToolCall(id="call_1", name="bash", args={"command": "rm -r build"})
ENVIRONMENT = "the sandbox as it is"
APPROVAL_MESSAGE = "31"
"""What the platform calls the message that asks."""


async def ask_approval(harness: IngressHarness, *, by: Author = ANN, sandbox: str = ENVIRONMENT) -> Approval:
    """Have a turn ask for a command, and the question be shown in the room."""
    await harness.send_message("clean up", by=by)
    turn = await harness.start_first_turn()
    async with harness.transactions.begin("turn.pause") as entry:
        fence = await conversations.raise_fence(entry.connection, turn.conversation)
        await turns.pause(entry.connection, turn, fence=fence, state=b"")
        await approvals.request(entry, turn, [CALL], sandbox)
    async with harness.database.begin() as connection:
        await connection.execute(
            update(deliveries)
            .where(deliveries.c.event_type == str(EventType.APPROVAL_REQUESTED))
            .values(state="delivered", platform_id=APPROVAL_MESSAGE)
        )
        (asked,) = await store.list_for_turn(connection, turn.id)
    return asked


async def get_approval(harness: IngressHarness, asked: Approval) -> Approval:
    """Return an approval's present state."""
    async with harness.database.read() as connection:
        found = await store.get(connection, harness.account, asked.id)
    assert found is not None
    return found


async def decide(harness: IngressHarness, method: str, asked: Approval, by: Author) -> None:
    """Approve in one of the ways that a chat offers."""
    if method == "button":
        await harness.press(f"approve:{asked.id}", by=by)
    elif method == "word":
        await harness.send_command("approve", asked.id, by=by)
    else:
        await harness.react("👍", APPROVAL_MESSAGE, by=by)


@pytest.mark.parametrize(
    ("rule", "way", "by", "state"),
    [
        ("anyone", "button", BOB, "approved"),
        ("asker", "button", BOB, "pending"),
        ("asker", "word", BOB, "pending"),
        ("asker", "thumb", BOB, "pending"),
        ("asker", "thumb", ANN, "approved"),
        (("8",), "button", ANN, "pending"),
        (("8",), "word", ANN, "pending"),
        (("8",), "word", BOB, "approved"),
    ],
)
async def test_the_channels_rule_holds_for_every_way_to_decide(
    database: Database, rule: ApproverRule, way: str, by: Author, state: str
) -> None:
    """Buttons, words and thumbs count only from whom the channel lets decide; the turn then goes on."""
    harness = await open_ingress_harness(database, approvers=rule)
    asked = await ask_approval(harness)
    await decide(harness, way, asked, by)
    assert (await get_approval(harness, asked)).state == state
    (turn,) = await harness.list_open_turns()
    assert turn.state is (TurnState.QUEUED if state == "approved" else TurnState.WAITING)


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """An update handler where anyone may decide."""
    return await open_ingress_harness(database)


async def test_a_question_is_decided_in_its_own_chat(harness: IngressHarness) -> None:
    """A command with its id from another room of the same bot decides nothing."""
    asked = await ask_approval(harness)
    assert await harness.press(f"approve:{asked.id}", room="other") == "This is no longer waiting."
    await harness.send_command("approve", asked.id, address=harness.address("other"))
    assert "no approval" in harness.replies[-1]
    assert (await get_approval(harness, asked)).state == "pending"


async def test_the_other_bot_of_a_room_is_silent_about_a_decision(harness: IngressHarness) -> None:
    """Both get `/approve ID`; the one that did not ask would reply that there is no such approval."""
    asked = await ask_approval(harness)
    record = replace(harness.channel_context.record, id="chn_other", name="other")
    async with harness.database.begin() as connection:
        await records.add(connection, record)
    here = Address(channel=record.id, room=harness.address().room)
    before = len(await harness.list_delivery_bodies())
    for number, name in enumerate(("approve", "answer")):
        command = Command(
            key=f"o{number}",
            address=here,
            author=BOB,
            name=name,
            rest=f"{asked.id} yes",
            sent_at=asked.created_at,
            room=RoomKind.GROUP,
        )
        await harness.receive(command, record=record)
        assert len(await harness.list_delivery_bodies()) == before
        await harness.receive(replace(command, key=f"{number}", token="slash"), record=record)
        assert asked.id in harness.replies[-1]
    assert (await get_approval(harness, asked)).state == "pending"


@pytest.mark.parametrize(("can_edit", "messages"), [(True, 2), (False, 1)])
async def test_a_typed_decision_is_one_message_where_the_question_stays(
    harness: IngressHarness, can_edit: bool, messages: int
) -> None:
    """Where the question cannot become the decision, that is the reply; a repetition has one of its own."""
    asked = await ask_approval(harness)
    context = {"can_edit": can_edit}
    before = len(await harness.list_delivery_bodies())
    for more in (messages, 1):
        await harness.send_message(f"/approve {asked.id}", by=BOB, context=context)
        bodies = (await harness.list_delivery_bodies())[before:]
        assert [body.count("rm -r build") for body in bodies] == [1] * more
        before += more
    await harness.send_message(f"/deny {asked.id}", by=BOB, context=context)
    (late,) = (await harness.list_delivery_bodies())[before:]
    assert "already approved by Bob" in late


async def test_a_late_press_shows_who_decided(harness: IngressHarness) -> None:
    """It names the person, and the first decision with its comment stays."""
    asked = await ask_approval(harness)
    press = ButtonPress(
        key="first",
        address=harness.address(),
        author=BOB,
        data=f"deny_with:{asked.id}",
        token="t",
        comment="not on a Friday",
    )
    await harness.receive(press)
    assert harness.replies[-1] == "Denied."
    assert await harness.press(f"approve:{asked.id}") == "Too late: already denied by Bob."
    decided = await get_approval(harness, asked)
    assert (decided.state, decided.comment) == ("denied", "not on a Friday")


async def test_buttons_without_a_person_decide_nothing(harness: IngressHarness) -> None:
    """A press with other data than our buttons' is answered and changes nothing."""
    asked = await ask_approval(harness)
    await harness.press(f"shrug:{asked.id}")
    assert "no longer valid" in harness.replies[-1]
    assert (await get_approval(harness, asked)).state == "pending"


async def test_other_reactions_and_other_messages_say_nothing(harness: IngressHarness) -> None:
    """Other reactions under the question, and a thumb under another message, decide nothing."""
    asked = await ask_approval(harness)
    await harness.react("🎉", APPROVAL_MESSAGE)
    await harness.react("👍", "32")
    assert (await get_approval(harness, asked)).state == "pending"
    await harness.react("👎🏽", APPROVAL_MESSAGE)
    assert (await get_approval(harness, asked)).state == "denied"


@pytest.mark.parametrize(
    ("by", "allow", "rule"),
    [(ANN, ["*"], "anyone"), (BOB, ["*", BOB.id], "anyone"), (BOB, ["*"], [BOB.id])],
    ids=["asker", "allowed by id", "approver by id"],
)
async def test_a_reaction_of_what_may_be_a_bot_decides_for_known_persons_only(
    harness: IngressHarness, by: Author, allow: list[str], rule: str | list[str]
) -> None:
    """A bot that reacts to each message, for example to have people vote, approves nothing."""
    asked = await ask_approval(harness)
    record = replace(harness.channel_context.record, config={"settings": {"approvers": rule}})
    settings: dict[str, Any] = {"may_be_bot": True, "allow": allow, "record": record}
    await harness.react("👍", APPROVAL_MESSAGE, by=Author(id="poll"), **settings)
    assert (await get_approval(harness, asked)).state == "pending"
    await harness.react("👍", APPROVAL_MESSAGE, by=by, **settings)
    assert (await get_approval(harness, asked)).state == "approved"


async def move(harness: IngressHarness, *, keeps_messages: bool) -> None:
    """Give the room the id "moved"."""
    rooms = {"old": harness.address(), "new": harness.address("moved")}
    await harness.receive(RoomMigrated(key="moved", **rooms, keeps_messages=keeps_messages))


async def list_changed_messages(harness: IngressHarness) -> list[tuple[str | None, str]]:
    """Return which message each decision changes, and where."""
    async with harness.database.read() as connection:
        rows = await connection.execute(
            select(deliveries.c.platform_id, deliveries.c.destination).where(
                deliveries.c.event_type == str(EventType.APPROVAL_RESOLVED)
            )
        )
        return [(row.platform_id, Address.room_of(row.destination)) for row in rows]


async def test_a_question_that_moved_with_its_room_is_decided_by_a_thumb(harness: IngressHarness) -> None:
    """Slack gives a shared channel another id, and messages keep theirs: the question changes there."""
    asked = await ask_approval(harness)
    await move(harness, keeps_messages=True)
    await harness.react("👍", APPROVAL_MESSAGE, room="moved")
    assert (await get_approval(harness, asked)).state == "approved"
    assert await list_changed_messages(harness) == [(APPROVAL_MESSAGE, "moved")]


@pytest.mark.parametrize("is_moved_late", [False, True])
async def test_a_button_of_a_room_that_moved_still_decides(
    harness: IngressHarness, *, is_moved_late: bool
) -> None:
    """An upgraded group of Telegram keeps its messages: the decision is a new one in the new group."""
    asked = await ask_approval(harness)
    if not is_moved_late:
        await move(harness, keeps_messages=False)
    assert await harness.press(f"approve:{asked.id}") == "Approved."
    if is_moved_late:
        await move(harness, keeps_messages=False)
    assert await list_changed_messages(harness) == [(None, "moved")]


async def test_buttons_of_a_turn_work_in_a_room_that_moved(harness: IngressHarness) -> None:
    """A message that stayed at the old id stops its turn."""
    await harness.send_message("clean up")
    (turn,) = await harness.list_open_turns()
    await move(harness, keeps_messages=False)
    assert await harness.press(f"stop:{turn.id}") == "Stopping."


async def test_one_of_many_at_once_decides(harness: IngressHarness) -> None:
    """Later deciders get the result, and it is announced once."""
    asked = await ask_approval(harness)

    async def one(number: int) -> str:
        try:
            decided = await harness.approvals.decide(
                harness.account, asked.id, approved=number % 2 == 0, by=f"key_{number}"
            )
        except AlreadyDecided as error:
            return error.decided.state
        return decided.state

    states = await asyncio.gather(*(one(number) for number in range(6)))
    assert set(states) == {(await get_approval(harness, asked)).state}
    resolved = [event for event in await harness.list_events() if event.type is EventType.APPROVAL_RESOLVED]
    assert len(resolved) == 1


async def test_an_approval_for_a_sandbox_that_changed_is_requested_again(harness: IngressHarness) -> None:
    """The earlier approval is void, the new question has the reason, and only its decision counts."""
    asked = await ask_approval(harness, sandbox="before")
    await harness.press(f"approve:{asked.id}")
    (turn,) = await harness.list_open_turns()
    async with harness.transactions.begin("turn.pause") as entry:
        all_asked = await store.list_for_turn(entry.connection, turn.id)
        unused = await outdated_approvals.list_unused(entry.connection, all_asked)
        assert outdated_approvals.list_outdated(unused, "before") == []
        outdated = outdated_approvals.list_outdated(unused, "after")
        await approvals.request(entry, turn, outdated_approvals.pending_calls(outdated), "after")
    old, new = await _approvals_of(harness, turn)
    assert (old.state, new.state) == ("void", "pending")
    assert new.digest == call_digest(CALL.name, CALL.args, "after")
    assert approvals.decisions_by_call([old, new]) == {}
    (again,) = [event for event in await harness.list_events() if _is_approval_request(event)]
    assert again.data["approval"] == new.id
    assert "new approval was requested" in await harness.press(f"deny:{asked.id}")
    await harness.press(f"approve:{new.id}")
    assert approvals.decisions_by_call(await _approvals_of(harness, turn))[CALL.id].approved


async def _approvals_of(harness: IngressHarness, turn: Turn) -> list[Approval]:
    async with harness.database.read() as connection:
        return await store.list_for_turn(connection, turn.id)


def _is_approval_request(event: Event) -> bool:
    return event.type is EventType.APPROVAL_REQUESTED and "sandbox was changed" in event.data.get(
        "reason", ""
    )


@pytest.mark.parametrize(
    ("rule", "by", "may"),
    [("anyone", ANN, True), ("asker", ANN, True), (("8",), ANN, False), (("8",), BOB, True)],
)
async def test_typing_a_command_approves_it_only_for_who_may_approve(
    database: Database, rule: Any, by: Author, may: bool
) -> None:
    """H6: a typed command counts as its asker's approval where the rule would accept their press."""
    harness = await open_ingress_harness(database, approvers=rule)
    await harness.send_message("!ls", by=by)
    (turn,) = await harness.list_open_turns()
    async with harness.database.read() as connection:
        assert await may_approve_own_turn(connection, turn) is may
        foreign = replace(turn, asker="key_that_is_none")
        assert await may_approve_own_turn(connection, foreign) is (rule in ("anyone", "asker"))
