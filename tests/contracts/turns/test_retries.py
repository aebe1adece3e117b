"""A turn whose model is unavailable is retried: it says so once, a job's result does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.deliveries import routes
from delivery.deliveries.part import Part, decode_part
from delivery.deliveries.route import Route
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from gateway.agents.port import (
    Agent,
    AgentClosed,
    AgentError,
    AgentEvent,
    ApprovalRequired,
    Finished,
    MessageCompleted,
    PendingToolCall,
    Tools,
    TurnInput,
)
from gateway.conversations.retry import TurnNotFailed, retry_turn
from gateway.store.job_state import JobState
from gateway.store.turn_state import TurnState
from gateway.store.turns import jobs, turns
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from turn_worker import TurnWorkerHarness, open_turn_worker

DOWN = 'The model "m" answered with HTTP 500'


@dataclass
class UnavailableAgent(Agent):
    """An agent whose model is unavailable while `down`, and then answers; `lasting`: retries do not help."""

    down: bool = True
    lasting: bool = False
    asked: list[str] = field(default_factory=list)

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Fail or answer."""
        self.asked.append(turn_input.input)
        if self.down:
            raise AgentError(DOWN, retryable=not self.lasting)
        yield MessageCompleted(text="the comment")
        yield Finished(output="the comment")


@dataclass
class CutOffAgent(Agent):
    """An agent whose first attempt is cut off after its answer, before the turn is settled."""

    error: AgentError
    attempts: int = 0

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Answer, and in the first attempt fail afterwards."""
        self.attempts += 1
        yield MessageCompleted(text="the answer")
        if self.attempts == 1:
            raise self.error
        yield Finished(output="the answer")


@dataclass
class LateStopAgent(Agent):
    """An agent whose turn is stopped after its answer, while the end of the turn is prepared."""

    stop: Callable[[str], None] | None = None

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Answer, and be stopped as soon as the attempt waits for anything."""
        assert self.stop is not None
        yield MessageCompleted(text="the comment on pigeon")
        self.stop(turn_input.turn)
        yield Finished(output="the comment on pigeon")


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """A conversation with a chat."""
    opened = await open_turn_worker(database, tmp_path)
    address = Address(channel="chn_1", room="room")
    chat = Route.to_chat(account=opened.agent.account, conversation=opened.conversation, address=address)
    async with database.begin() as connection:
        await routes.add_route(connection, chat)
    return opened


async def add_follow_up(harness: TurnWorkerHarness) -> Turn:
    """Add a job that has ended, and the turn that follows it."""
    job = Job(
        account=harness.agent.account,
        conversation=harness.conversation,
        agent=harness.agent.id,
        id=new_id("job"),
        turn=new_id("trn"),
        asker="",
        command="echo pigeon",
        provider="host",
        sandbox="box",
        sandbox_record=None,
        workspace=None,
        state=JobState.COMPLETED,
        exit_code=0,
        output="pigeon\n",
        token_digest=b"",
        token_sealed=b"",
        created_at=utc_now(),
    )
    turn = Turn(
        account=job.account,
        conversation=job.conversation,
        agent=job.agent,
        id=new_id("trn"),
        trigger="job",
        job=job.id,
        input="pigeon",
        notify=True,
        created_at=utc_now(),
    )
    async with harness.database.begin() as connection:
        await jobs.insert_job(connection, job)
        await turns.insert_turn(connection, turn)
    return turn


async def events_of(harness: TurnWorkerHarness, turn: Turn) -> list[Event]:
    """Return a turn's events."""
    async with harness.database.read() as connection:
        return await outbox.list_for_turn(connection, turn.id)


async def chat_parts(harness: TurnWorkerHarness) -> list[Part]:
    """Return what the chat gets, in order."""
    async with harness.database.read() as connection:
        rows = await connection.execute(select(deliveries.c.body).order_by(deliveries.c.position))
    return [decode_part(row.body) for row in rows]


async def until(
    harness: TurnWorkerHarness, turn: Turn, is_reached: Callable[[list[Event]], bool]
) -> list[Event]:
    """Wait until a turn's events fulfil a condition, and return them."""
    async with asyncio.timeout(60):
        while True:
            events = await events_of(harness, turn)
            if is_reached(events):
                return events
            await asyncio.sleep(0.01)


def of_type(events: list[Event], event_type: EventType) -> list[Event]:
    """Return the events of one type."""
    return [event for event in events if event.type is event_type]


async def fail_attempts(harness: TurnWorkerHarness, turn: Turn, count: int) -> list[Event]:
    """Have that many attempts fail, without the waits between them."""
    for number in range(1, count + 1):
        await until(harness, turn, partial(_has_failed, times=number))
        if number < count:
            assert await retry_turn(harness.transactions, turn.account, turn.id) is not None
    return await events_of(harness, turn)


def _has_failed(events: list[Event], *, times: int) -> bool:
    return len(of_type(events, EventType.TURN_RETRYING)) >= times


@pytest.mark.parametrize(
    "error", [AgentClosed(), AgentError(DOWN, retryable=True)], ids=["drained", "retried"]
)
async def test_an_answer_that_was_not_settled_is_given_once(
    harness: TurnWorkerHarness, error: AgentError
) -> None:
    """A stop between the answer and the end of the turn leaves the answer to the next attempt."""
    turn, agent = await harness.add_turn("question"), CutOffAgent(error)
    async with harness.running(agent):
        await harness.wake()
        async with asyncio.timeout(60):
            while agent.attempts < 2:
                with suppress(TurnNotFailed):
                    await retry_turn(harness.transactions, turn.account, turn.id)
                await asyncio.sleep(0.01)
        await harness.wait_for_state(turn, TurnState.COMPLETED)
    said = of_type(await events_of(harness, turn), EventType.MESSAGE_COMPLETED)
    assert [event.data["attempt"] for event in said] == [2]
    assert [part.text for part in await chat_parts(harness)].count("the answer") == 1


async def test_a_job_is_reported_once_and_its_comment_follows(harness: TurnWorkerHarness) -> None:
    """The chat and `agent.finished` get the result while the model is down, and later only the comment."""
    turn, agent = await add_follow_up(harness), UnavailableAgent()
    async with harness.running(agent):
        await harness.wake()
        await fail_attempts(harness, turn, 3)
        reports = [part.text for part in await chat_parts(harness) if "pigeon" in part.text]
        agent.down = False
        await retry_turn(harness.transactions, turn.account, turn.id)
        await harness.wait_for_state(turn, TurnState.COMPLETED)
    assert len(reports) == 1
    assert f"Job {turn.job} `echo pigeon` completed, exit code 0." in reports[0]
    early, last = of_type(await events_of(harness, turn), EventType.AGENT_FINISHED)
    assert (early.data["state"], early.data["exit_code"], early.data["error"]) == ("retrying", 0, DOWN)
    assert "pigeon" in early.data["output"]
    assert (last.data["state"], last.data["output"]) == ("completed", "the comment")
    assert early.data["resultId"] == last.data["resultId"] == turn.job
    assert [part.text for part in await chat_parts(harness) if "pigeon" in part.text] == reports


async def test_a_follow_up_that_is_stopped_after_its_answer_has_no_report(harness: TurnWorkerHarness) -> None:
    """The chat and `agent.finished` get the answer alone, which says what the report would."""
    turn, agent = await add_follow_up(harness), LateStopAgent()
    async with harness.running(agent) as worker:
        agent.stop = worker.cancel_local
        await harness.wake()
        stopped = await harness.wait_for_state(turn, TurnState.CANCELLED)
    assert stopped.output == "the comment on pigeon"
    assert [part.text for part in await chat_parts(harness)] == ["the comment on pigeon", "Stopped."]
    (finished,) = of_type(await events_of(harness, turn), EventType.AGENT_FINISHED)
    assert (finished.data["state"], finished.data["output"]) == ("cancelled", "the comment on pigeon")


async def test_a_chat_has_one_message_about_all_retries(harness: TurnWorkerHarness) -> None:
    """The second failure is reported; later ones, and the end, only change that message."""
    turn, agent = await harness.add_turn("question"), UnavailableAgent()
    async with harness.running(agent):
        await harness.wake()
        events = await fail_attempts(harness, turn, 4)
        agent.down = False
        await retry_turn(harness.transactions, turn.account, turn.id)
        await harness.wait_for_state(turn, TurnState.COMPLETED)
    retrying = of_type(events, EventType.TURN_RETRYING)
    assert [event.data["after"] for event in retrying] == [2.0, 10.0, 30.0, 120.0]
    assert [event.data["attempt"] for event in retrying] == [1, 2, 3, 4]
    assert {event.data["error"] for event in retrying} == {DOWN}
    assert [event.data["quiet"] for event in retrying] == [True, False, False, False]
    assert [event.data.get("replaces") for event in retrying] == [None, None, *[retrying[1].id] * 2]
    first, *rest = await chat_parts(harness)
    assert DOWN in first.text
    assert not first.only_edit
    assert [button.data for button in first.buttons] == [f"retry:{turn.id}", f"stop:{turn.id}"]
    assert [part.text for part in rest if not part.only_edit] == ["the comment"]
    assert rest[-1].text == "Attempt 5 succeeded."


async def test_a_waiting_turn_has_its_reason_and_next_attempt(harness: TurnWorkerHarness) -> None:
    """The row that lists and the status show names the error and the time while the turn waits."""
    turn = await harness.add_turn("question")
    async with harness.running(UnavailableAgent()):
        await harness.wake()
        (event,) = of_type(await fail_attempts(harness, turn, 1), EventType.TURN_RETRYING)
        waiting = await harness.wait_for_state(turn, TurnState.QUEUED)
    assert waiting.error == DOWN
    assert waiting.next_at is not None
    assert abs(waiting.next_at.timestamp() - Event.decode(event.encode()).time.timestamp() - 2) < 1


@dataclass
class CarefulAgent(Agent):
    """An agent that asks a person before it answers."""

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Ask."""
        call = PendingToolCall(id="c1", name="bash", args={"command": "ls"})
        yield ApprovalRequired(calls=(call,), state=b"")


@pytest.mark.parametrize("agent", [CarefulAgent(), UnavailableAgent()], ids=["approval", "retry"])
async def test_a_job_is_reported_although_a_question_is_before_it(
    harness: TurnWorkerHarness, agent: Agent
) -> None:
    """A turn that waits for a person or for its model holds up the comment, and not the result."""
    question = await harness.add_turn("question")
    turn = await add_follow_up(harness)
    async with harness.running(agent):
        await harness.wake()
        if isinstance(agent, UnavailableAgent):
            await fail_attempts(harness, question, 2)
        events = await until(harness, turn, lambda seen: bool(of_type(seen, EventType.AGENT_FINISHED)))
    (early,) = of_type(events, EventType.AGENT_FINISHED)
    assert (early.data["state"], early.data["exit_code"]) == ("queued", 0)
    assert len([part for part in await chat_parts(harness) if "pigeon" in part.text]) == 1


async def test_a_message_passes_a_follow_up_that_waits(harness: TurnWorkerHarness) -> None:
    """A follow-up turn that is retried for hours delays no other turn, and runs once its agent answers."""
    turn, agent = await add_follow_up(harness), UnavailableAgent()
    async with harness.running(agent):
        await harness.wake()
        await fail_attempts(harness, turn, 4)
        agent.down = False
        await harness.add_turn("question")
        await harness.wake()
        await harness.wait_for_state(turn, TurnState.COMPLETED)
    assert agent.asked[-2:] == ["question", "pigeon"]


async def test_a_retried_follow_up_keeps_its_job_and_repeats_no_report(harness: TurnWorkerHarness) -> None:
    """The new turn is about the same job; a second failure does not report the job again."""
    turn, agent = await add_follow_up(harness), UnavailableAgent(lasting=True)
    async with harness.running(agent):
        await harness.wake()
        await harness.wait_for_state(turn, TurnState.FAILED)
        again = await retry_turn(harness.transactions, turn.account, turn.id)
        assert again is not None
        failed = await harness.wait_for_state(again, TurnState.FAILED)
    assert failed.job == turn.job
    assert len([part for part in await chat_parts(harness) if "pigeon" in part.text]) == 1
    (finished,) = of_type(await events_of(harness, again), EventType.AGENT_FINISHED)
    assert (finished.data["resultId"], finished.data["state"]) == (turn.job, "failed")


async def test_a_waiting_turn_is_cancelled_at_once(harness: TurnWorkerHarness) -> None:
    """A cancelled turn does not wait for its next attempt, and its report in the chat changes."""
    turn = await harness.add_turn("question")
    async with harness.running(UnavailableAgent()):
        await harness.wake()
        await fail_attempts(harness, turn, 3)
        async with harness.database.begin() as connection:
            await turns.request_cancel(connection, turn.id)
        await harness.wake()
        await harness.wait_for_state(turn, TurnState.CANCELLED)
        with pytest.raises(TurnNotFailed):
            await retry_turn(harness.transactions, turn.account, turn.id)
    (cancelled,) = of_type(await events_of(harness, turn), EventType.TURN_CANCELLED)
    assert (
        cancelled.data["replaces"] == of_type(await events_of(harness, turn), EventType.TURN_RETRYING)[1].id
    )
