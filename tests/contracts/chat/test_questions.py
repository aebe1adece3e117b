"""Questions of the agent: answered once, by those who may, in every way a chat offers, on both databases."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from channels.message import Author, QuotedMessage, RoomKind
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.events.event import EventType
from gateway.agents.port import (
    Agent,
    AgentEvent,
    ApprovalRequired,
    Finished,
    PendingToolCall,
    Tools,
    TurnInput,
)
from gateway.conversations.approvals import AlreadyDecided, Approvals
from gateway.conversations.approver_rules import ApproverRule
from gateway.conversations.questions import SIGN_IN, InvalidAnswer
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns.approvals import Approval
from ingress_harness import ANN, BOB, IngressHarness, open_ingress_harness
from turn_worker import open_turn_worker

CHOICES: dict[str, Any] = {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}
FORM: dict[str, Any] = {"question": "Your shirt?", "form": {"name": "on the back", "size": "S to XL"}}


async def present(harness: IngressHarness, asked: Approval) -> Approval:
    """Return a question's present state."""
    async with harness.database.read() as connection:
        found = await store.get(connection, harness.account, asked.id)
    assert found is not None
    return found


async def answer(harness: IngressHarness, way: str, asked: Approval, by: Author) -> None:
    """Choose coffee in one of the ways that a chat offers."""
    if way == "button":
        await harness.press(f"answer:{asked.id}:2", by=by)
    elif way == "number":
        await harness.send_command("answer", f"{asked.id} 2", by=by)
    else:
        await harness.send_message(f"/answer {asked.id} coffee", by=by)


@pytest.mark.parametrize("way", ["button", "number", "text"])
@pytest.mark.parametrize(
    ("rule", "by", "state"),
    [("anyone", BOB, "answered"), ("asker", BOB, "pending"), ("asker", ANN, "answered")],
)
async def test_those_who_may_answer_a_question(
    database: Database, rule: ApproverRule, by: Author, state: str, way: str
) -> None:
    """The channel's rule holds for answers, and the turn goes on with one."""
    harness = await open_ingress_harness(database, approvers=rule)
    asked = await harness.ask(CHOICES)
    await answer(harness, way, asked, by)
    found = await present(harness, asked)
    assert (found.state, found.comment) == (state, "Coffee" if state == "answered" else None)
    (turn,) = await harness.list_open_turns()
    assert turn.state is (TurnState.QUEUED if state == "answered" else TurnState.WAITING)


async def test_a_question_has_one_winner(database: Database) -> None:
    """The same answer again is accepted, a different one is refused with the first."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(CHOICES)
    decisions = Approvals(harness.transactions)
    for given in ("tea", "1"):
        assert (await decisions.answer(harness.account, asked.id, given, by="key")).comment == "Tea"
    with pytest.raises(AlreadyDecided):
        await decisions.answer(harness.account, asked.id, "Coffee", by="key")
    assert "Too late" in await harness.press(f"answer:{asked.id}:2")
    kinds = [str(event.type) for event in await harness.list_events()]
    assert kinds.count("question.requested") == kinds.count("question.answered") == 1
    assert "approval.requested" not in kinds


@pytest.mark.parametrize(
    ("choices", "given", "chosen"),
    [
        (["\u05ea\u05d4\u200f", "Red\u200b"], "\u05ea\u05d4", 0),
        (["Caf\u00e9", "Th\u00e9"], "the\u0301", 1),
        (["\u2764\ufe0f yes", "no"], "\u2764 Yes", 0),
        (["Tea", "Tea\u200b"], "Tea\u200b", 1),
    ],
)
async def test_invisible_characters_make_no_difference(
    database: Database, choices: list[str], given: str, chosen: int
) -> None:
    """Marks of direction, joiners, other forms of a letter and the style of an emoji."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask({"question": "Which?", "choices": choices})
    await Approvals(harness.transactions).answer(harness.account, asked.id, given, by="key")
    assert (await present(harness, asked)).comment == choices[chosen]


async def test_answers_that_do_not_fit_change_nothing(database: Database) -> None:
    """Another text than the choices, a missing field and an approval are refused with what would fit."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(CHOICES)
    decisions = Approvals(harness.transactions)
    for given in ("milk", "0", "3", "", {"a": "b"}):
        with pytest.raises(InvalidAnswer):
            await decisions.answer(harness.account, asked.id, given, by="key")
    with pytest.raises(InvalidAnswer):
        await decisions.decide(harness.account, asked.id, approved=True, by="key")
    assert "1. Tea; 2. Coffee" in await harness.press(f"answer:{asked.id}:7")
    assert (await present(harness, asked)).state == "pending"


async def test_a_form_is_filled_in_by_text_or_by_fields(database: Database) -> None:
    """Every field is needed; a text names them with colons."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(FORM)
    decisions = Approvals(harness.transactions)
    with pytest.raises(InvalidAnswer, match="size is missing"):
        await decisions.answer(harness.account, asked.id, {"name": "Ann"}, by="key")
    await harness.send_command("answer", f"{asked.id} name: Ann; size: M")
    assert (await present(harness, asked)).comment == '{"name": "Ann", "size": "M"}'


async def test_a_question_can_be_declined(database: Database) -> None:
    """`/deny` ends a question without an answer, with the reason for the agent."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(CHOICES)
    await harness.send_command("deny", f"{asked.id} not my decision")
    found = await present(harness, asked)
    assert (found.state, found.comment) == ("denied", "not my decision")


async def test_a_chat_shows_the_question_and_then_the_answer(database: Database) -> None:
    """The message has the numbered choices and their buttons; the answer replaces it."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(CHOICES)
    await harness.press(f"answer:{asked.id}:1")
    shown = [body for body in await harness.list_delivery_bodies() if "Tea or coffee?" in body]
    assert len(shown) == 2
    assert "1. Tea\\n2. Coffee" in shown[0]
    assert f"answer:{asked.id}:2" in shown[0]
    assert "Answered by Ann" in shown[1]


SHOWN = "31"
"""What the platform calls the message that asks."""


async def show(harness: IngressHarness) -> None:
    """Record that the platform shows the question."""
    async with harness.database.begin() as connection:
        await connection.execute(
            update(deliveries)
            .where(deliveries.c.event_type == str(EventType.QUESTION_REQUESTED))
            .values(state="delivered", platform_id=SHOWN)
        )


def quoting(platform_id: str) -> QuotedMessage:
    """Return a message of the bot that a reply quotes."""
    return QuotedMessage(author=Author(id="bot", is_bot=True), text="…", platform_id=platform_id)


@pytest.mark.parametrize(
    ("args", "text", "answer"),
    [({"question": "Your name?"}, "Ada\n  Lovelace", "Ada\n  Lovelace"), (CHOICES, "coffee", "Coffee")],
)
async def test_a_reply_to_a_question_answers_it(
    database: Database, args: dict[str, Any], text: str, answer: str
) -> None:
    """Where people reply to messages, the text of a reply counts like the command."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(args)
    await show(harness)
    await harness.send_message(text, by=BOB, quoted=quoting(SHOWN))
    answered = await present(harness, asked)
    assert (answered.state, answered.comment, answered.decided_by) == ("answered", answer, BOB.id)
    assert len(await harness.list_open_turns()) == 1


async def test_a_reply_that_fits_no_choice_says_what_would(database: Database) -> None:
    """It is not left behind the turn that waits; a reply to another message is one for the agent."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(CHOICES)
    await show(harness)
    await harness.send_message("Cocoa", quoted=quoting(SHOWN))
    assert "Coffee" in (await harness.list_delivery_bodies())[-1]
    assert len(await harness.list_open_turns()) == 1
    await harness.send_message("Tea", quoted=quoting("30"))
    assert (await present(harness, asked)).state == "pending"
    assert len(await harness.list_open_turns()) == 2


async def test_a_reply_answers_by_the_rule_of_the_channel(database: Database) -> None:
    """Who may not decide about commands does not answer either."""
    harness = await open_ingress_harness(database, approvers="asker")
    asked = await harness.ask(CHOICES)
    await show(harness)
    await harness.send_message("Tea", by=BOB, quoted=quoting(SHOWN))
    assert (await present(harness, asked)).state == "pending"
    assert "Only the person who asked" in (await harness.list_delivery_bodies())[-1]


@pytest.mark.parametrize(
    ("args", "text", "answer"), [({"question": "Your name?"}, "Ada", "Ada"), (CHOICES, "2", "Coffee")]
)
async def test_a_text_in_a_direct_chat_answers_the_question(
    database: Database, args: dict[str, Any], text: str, answer: str
) -> None:
    """It would be in line behind the turn that waits for it."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(args)
    await harness.send_message(text)
    answered = await present(harness, asked)
    assert (answered.state, answered.comment) == ("answered", answer)
    assert len(await harness.list_open_turns()) == 1


@pytest.mark.parametrize(
    ("tool", "room", "says"),
    [
        ("ask_person", RoomKind.DIRECT, "/answer"),
        ("ask_person", RoomKind.GROUP, "/answer"),
        ("bash", RoomKind.DIRECT, "/approve"),
        (SIGN_IN, RoomKind.DIRECT, "/deny"),
    ],
)
async def test_a_message_behind_a_turn_that_waits_for_a_person_says_so(
    database: Database, tool: str, room: RoomKind, says: str
) -> None:
    """It is for the agent, later; the notice has the command that ends the wait."""
    harness = await open_ingress_harness(database)
    asked = await harness.ask(CHOICES, tool=tool)
    await harness.send_message("Cocoa", room=room, mentions_bot=True)
    assert (await present(harness, asked)).state == "pending"
    assert len(await harness.list_open_turns()) == 2
    notice = (await harness.list_delivery_bodies())[-1]
    assert "your message follows" in notice
    assert f"`{says} {asked.id}" in notice


@dataclass
class QuestionAgent(Agent):
    """An agent that asks once, and answers with the result of its question."""

    given: list[TurnInput] = field(default_factory=list)

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Ask in the first attempt, and use the answer in the next."""
        self.given.append(turn_input)
        if await tools.needs_approval("ask_person", CHOICES, call="c1"):
            call = PendingToolCall(id="c1", name="ask_person", args=CHOICES)
            yield ApprovalRequired(calls=(call,), state=b"")
            return
        result = await tools.call("ask_person", CHOICES, call="c1")
        yield Finished(output=f"{result.ok}: {result.content}")


async def test_the_agent_gets_the_answer_after_a_restart(database: Database, tmp_path: Path) -> None:
    """A question outlives the process that asked it; the tool call returns the answer."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn()
    async with harness.running(QuestionAgent()):
        await harness.wake()
        await harness.wait_for_state(turn, TurnState.WAITING)
    async with database.read() as connection:
        (asked,) = await store.list_for_turn(connection, turn.id)
    agent = QuestionAgent()
    async with harness.running(agent):
        await Approvals(harness.transactions).answer(turn.account, asked.id, "2", by="somebody")
        done = await harness.wait_for_state(turn, TurnState.COMPLETED)
    assert done.output == "True: Coffee"
    assert agent.given[0].decisions["c1"].approved
