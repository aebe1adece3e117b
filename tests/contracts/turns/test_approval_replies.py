"""G3: who decides about a command in a chat, by button, word or thumb, on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from channels.message import Author, Press
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.events.event import Event, Kind
from gateway.agents.port import Call
from gateway.conversations import approvals
from gateway.conversations.approvals import AlreadyDecided, digest_of
from gateway.conversations.approver_rules import Rule, may_approve_own
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from ingress_harness import ANN, BOB, Stage, open_stage

CALL = Call(id="call_1", name="bash", args={"command": "rm -r build"})
HERE = "the sandbox as it is"
QUESTION = "31"
"""What the platform calls the message that asks."""


async def question(stage: Stage, *, by: Author = ANN, sandbox: str = HERE) -> Approval:
    """Have a turn ask for a command, and the question be shown in the room."""
    await stage.say("clean up", by=by)
    turn = await stage.begin()
    async with stage.ledger.entry("turn.pause") as entry:
        fence = await conversations.raise_fence(entry.connection, turn.conversation)
        await turns.pause(entry.connection, turn, fence=fence, state=b"")
        await approvals.ask(entry, turn, [CALL], sandbox)
    async with stage.database.begin() as connection:
        await connection.execute(
            update(deliveries)
            .where(deliveries.c.event_type == str(Kind.APPROVAL_REQUESTED))
            .values(state="delivered", platform_id=QUESTION)
        )
        (asked,) = await store.of_turn(connection, turn.id)
    return asked


async def now(stage: Stage, asked: Approval) -> Approval:
    """Return an approval as it stands."""
    async with stage.database.read() as connection:
        found = await store.find(connection, stage.account, asked.id)
    assert found is not None
    return found


async def decide(stage: Stage, way: str, asked: Approval, by: Author) -> None:
    """Approve in one of the ways that a chat offers."""
    if way == "button":
        await stage.press(f"approve:{asked.id}", by=by)
    elif way == "word":
        await stage.command("approve", asked.id, by=by)
    else:
        await stage.react("👍", QUESTION, by=by)


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
    database: Database, rule: Rule, way: str, by: Author, state: str
) -> None:
    """Buttons, words and thumbs count only from whom the channel lets decide; the turn then goes on."""
    stage = await open_stage(database, approvers=rule)
    asked = await question(stage)
    await decide(stage, way, asked, by)
    assert (await now(stage, asked)).state == state
    (turn,) = await stage.line()
    assert turn.state is (TurnState.QUEUED if state == "approved" else TurnState.WAITING)


@pytest.fixture
async def stage(database: Database) -> Stage:
    """A reception where anyone may decide."""
    return await open_stage(database)


async def test_a_question_is_decided_in_its_own_chat(stage: Stage) -> None:
    """Who knows its id in another room of the same bot decides nothing there."""
    asked = await question(stage)
    assert await stage.press(f"approve:{asked.id}", room="other") == "This is no longer waiting."
    await stage.command("approve", asked.id, address=stage.address("other"))
    assert "no approval" in stage.answered[-1]
    assert (await now(stage, asked)).state == "pending"


async def test_a_late_press_is_told_who_decided(stage: Stage) -> None:
    """By the name people know, after the first decision with its comment stands."""
    asked = await question(stage)
    press = Press(
        key="first",
        address=stage.address(),
        author=BOB,
        data=f"deny_with:{asked.id}",
        token="t",
        comment="not on a Friday",
    )
    await stage.bring(press)
    assert stage.answered[-1] == "Denied."
    assert await stage.press(f"approve:{asked.id}") == "Too late: already denied by Bob."
    decided = await now(stage, asked)
    assert (decided.state, decided.comment) == ("denied", "not on a Friday")


async def test_buttons_of_nobody_decide_nothing(stage: Stage) -> None:
    """A press with other data than our buttons' is answered and changes nothing."""
    asked = await question(stage)
    await stage.press(f"shrug:{asked.id}")
    assert "means nothing" in stage.answered[-1]
    assert (await now(stage, asked)).state == "pending"


async def test_other_reactions_and_other_messages_say_nothing(stage: Stage) -> None:
    """Applause under the question, a thumb under something else: nobody's business."""
    asked = await question(stage)
    await stage.react("🎉", QUESTION)
    await stage.react("👍", "32")
    assert (await now(stage, asked)).state == "pending"
    await stage.react("👎🏽", QUESTION)
    assert (await now(stage, asked)).state == "denied"


async def test_one_of_many_at_once_decides(stage: Stage) -> None:
    """Everybody else learns what stands, and it is told once."""
    asked = await question(stage)

    async def one(number: int) -> str:
        try:
            decided = await stage.approvals.decide(
                stage.account, asked.id, approved=number % 2 == 0, by=f"key_{number}"
            )
        except AlreadyDecided as error:
            return error.winner.state
        return decided.state

    states = await asyncio.gather(*(one(number) for number in range(6)))
    assert set(states) == {(await now(stage, asked)).state}
    resolved = [event for event in await stage.told() if event.type is Kind.APPROVAL_RESOLVED]
    assert len(resolved) == 1


async def test_an_approval_for_a_sandbox_that_changed_is_asked_for_anew(stage: Stage) -> None:
    """What was approved is void, the new question says why, and deciding it again is what counts."""
    asked = await question(stage, sandbox="before")
    await stage.press(f"approve:{asked.id}")
    (turn,) = await stage.line()
    async with stage.ledger.entry("turn.pause") as entry:
        all_asked = await store.of_turn(entry.connection, turn.id)
        assert await approvals.outdated(entry, all_asked, "before") == []
        outdated = await approvals.outdated(entry, all_asked, "after")
        await approvals.ask_again(entry, turn, outdated, "after")
    old, new = await _of(stage, turn)
    assert (old.state, new.state) == ("void", "pending")
    assert new.digest == digest_of(CALL.name, CALL.args, "after")
    assert approvals.decisions([old, new]) == {}
    (again,) = [event for event in await stage.told() if _asks_again(event)]
    assert again.data["approval"] == new.id
    assert "asked again" in await stage.press(f"deny:{asked.id}")
    await stage.press(f"approve:{new.id}")
    assert approvals.decisions(await _of(stage, turn))[CALL.id].approved


async def _of(stage: Stage, turn: Turn) -> list[Approval]:
    async with stage.database.read() as connection:
        return await store.of_turn(connection, turn.id)


def _asks_again(event: Event) -> bool:
    return event.type is Kind.APPROVAL_REQUESTED and "sandbox was changed" in event.data.get("reason", "")


@pytest.mark.parametrize(
    ("rule", "by", "may"),
    [("anyone", ANN, True), ("asker", ANN, True), (("8",), ANN, False), (("8",), BOB, True)],
)
async def test_typing_a_command_approves_it_only_for_who_may_approve(
    database: Database, rule: Any, by: Author, may: bool
) -> None:
    """H6: what an asker types counts as their approval where the rule would take their press."""
    stage = await open_stage(database, approvers=rule)
    await stage.say("!ls", by=by)
    (turn,) = await stage.line()
    async with stage.database.read() as connection:
        assert await may_approve_own(connection, turn) is may
        foreign = replace(turn, asker="key_that_is_none")
        assert await may_approve_own(connection, foreign) is (rule in ("anyone", "asker"))
