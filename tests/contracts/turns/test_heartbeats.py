"""The turns of heartbeats end without a message if the agent has nothing to report."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from delivery.broker.memory_events import MemoryEvents
from delivery.database.engine import Database
from delivery.events.event import Event
from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    Checkpoint,
    Delta,
    Finished,
    MessageCompleted,
    Tools,
    TurnInput,
)
from gateway.schedules.heartbeat import NOTHING_TO_REPORT, heartbeat_request, says_nothing
from gateway.store.conversations import messages
from gateway.store.tables import turns as turn_table
from gateway.store.turn_state import TurnState
from gateway.store.turns.turns import Turn
from turn_worker import open_turn_worker


class CheckingAgent(Agent):
    """Says something on the way, saves its progress, and answers; without an answer it fails."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Stream two messages."""
        del turn_input, tools
        yield Delta(text="I look at it.")
        yield MessageCompleted(text="I look at it.")
        yield Checkpoint(state=b"")
        if self.answer is None:
            raise AgentError("The model is gone.")
        yield Delta(text=self.answer)
        yield MessageCompleted(text=self.answer)
        yield Finished(output=self.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTurn:
    """How a turn ended, with its messages, the events that were streamed, and its own events."""

    turn: Turn
    said: list[str]
    streamed: list[str]


class RecordingEvents(MemoryEvents):
    """A stream that remembers what was streamed."""

    def __init__(self) -> None:
        super().__init__()
        self.streamed: list[str] = []

    async def publish_transient(self, event: Event, *, account: str) -> None:
        """Remember the type of an event."""
        self.streamed.append(str(event.type))
        await super().publish_transient(event, account=account)


async def run_turn(
    database: Database, directory: Path, answer: str | None, request: dict[str, Any] | None
) -> RunTurn:
    """Run a turn to its end."""
    harness = await open_turn_worker(database, directory)
    harness.stream = stream = RecordingEvents()
    turn = await harness.add_turn()
    async with database.begin() as connection:
        await connection.execute(update(turn_table).where(turn_table.c.id == turn.id).values(request=request))
    async with harness.running(CheckingAgent(answer)):
        await harness.wake()
        state = TurnState.FAILED if answer is None else TurnState.COMPLETED
        ended = await harness.wait_for_state(turn, state)
    async with database.read() as connection:
        found = await messages.list_replies(connection, turn.id)
    return RunTurn(turn=ended, said=[one.text for one in found], streamed=stream.streamed)


async def test_nothing_is_sent_without_a_reason(database: Database, tmp_path: Path) -> None:
    """Neither what was said on the way nor the word itself is a message, and nothing is streamed."""
    run = await run_turn(database, tmp_path, f"`{NOTHING_TO_REPORT}`\n", heartbeat_request())
    assert (run.turn.output, run.said, run.streamed) == ("", [], [])


async def test_a_report_is_sent(database: Database, tmp_path: Path) -> None:
    """An answer of a heartbeat is one message; a failure is reported as that of any turn."""
    run = await run_turn(database, tmp_path, "The disk is full.", heartbeat_request())
    assert (run.turn.output, run.said) == ("The disk is full.", ["The disk is full."])


async def test_a_failure_is_reported(database: Database, tmp_path: Path) -> None:
    """A heartbeat that fails is a failed turn with its error."""
    run = await run_turn(database, tmp_path, None, heartbeat_request())
    assert (run.turn.error, run.said) == ("The model is gone.", [])


async def test_other_turns_are_never_silent(database: Database, tmp_path: Path) -> None:
    """The word has no meaning in the turn of a message."""
    run = await run_turn(database, tmp_path, NOTHING_TO_REPORT, None)
    assert run.said == ["I look at it.", NOTHING_TO_REPORT]
    assert run.streamed


@pytest.mark.parametrize(
    ("answer", "silent"),
    [
        ("", True),
        ("HEARTBEAT_OK", True),
        ("**HEARTBEAT_OK.**", True),
        ("```\nHEARTBEAT_OK\n```", True),
        ("HEARTBEAT_OK, but the disk is nearly full", False),
        ("OK", False),
    ],
)
def test_the_word_must_be_alone(answer: str, silent: bool) -> None:
    """An answer that contains more than the word is sent."""
    assert says_nothing(answer) is silent
