"""Who wrote a message reaches the model in rooms, and nothing else changes, on both databases."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from channels.message import RoomKind
from delivery.database.engine import Database
from gateway.agents.port import Agent, AgentEvent, Finished, Tools, TurnInput
from gateway.conversations.message_frame import frame_message
from gateway.conversations.retry import retry_in
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn
from ingress_harness import ANN, BOB, NOW, in_group, open_ingress_harness
from turn_worker import open_turn_worker

ORIGIN = {
    "name": "Ann",
    "id": "7",
    "platform": "memory",
    "room": "room",
    "thread": None,
    "time": "2026-01-02T00:00:00+00:00",
}


@dataclass
class CapturingAgent(Agent):
    """An agent that keeps what it was given."""

    given: list[TurnInput] = field(default_factory=list)

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Answer at once."""
        self.given.append(turn_input)
        yield Finished(output="done")


async def test_messages_of_rooms_have_their_authors(database: Database) -> None:
    """A message of a group is stored with its author, time and room; one of a direct chat is not."""
    harness = await open_ingress_harness(database)
    await harness.send_message("@bot work", **in_group(mentions_bot=True))
    await harness.send_message("@bot too", by=BOB, **in_group(mentions_bot=True))
    await harness.send_message("hello", address=harness.address("direct"))
    first, second = await harness.list_open_turns()
    (direct,) = await harness.list_open_turns("direct")
    named = {"name": ANN.name, "id": ANN.id, "time": NOW.isoformat(), "message": "0", "edited": None}
    assert first.origin == {**ORIGIN, **named}
    assert second.origin is not None
    assert (second.origin["name"], second.origin["id"]) == (BOB.name, BOB.id)
    assert direct.origin is None


async def test_an_edit_keeps_the_author(database: Database) -> None:
    """A message that is edited while it waits has the new text and the same author."""
    harness = await open_ingress_harness(database)
    first = await harness.send_message("teh", **in_group(mentions_bot=True))
    await harness.send_message("the", key="e1", platform_id=first, edited=True, room=RoomKind.GROUP)
    (turn,) = await harness.list_open_turns()
    assert turn.input == "the"
    assert turn.origin is not None
    assert turn.origin["name"] == ANN.name


@pytest.mark.parametrize(
    ("config", "framed"),
    [({"model": "openai:x"}, True), ({"model": "openai:x", "roomPrompt": ""}, True), ({}, False)],
)
async def test_a_model_gets_the_frame_and_a_shell_the_text(
    database: Database, tmp_path: Path, config: dict[str, str], framed: bool
) -> None:
    """A model gets the framed text and the explanation; the shell, and chats of two, get the text."""
    harness = await open_turn_worker(database, tmp_path, **config)
    agent = CapturingAgent()
    plain = await harness.add_turn("alone")
    room = replace(plain, id="trn_room", input="hello", origin=ORIGIN)
    async with database.begin() as connection:
        await turns.insert_turn(connection, room)
    async with harness.running(agent):
        await harness.wake()
        await harness.wait_for_state(room, TurnState.COMPLETED)
    alone, asked = agent.given
    assert (alone.input, alone.agent.instructions) == ("alone", "")
    assert asked.input == (frame_message(room.id, ORIGIN, "hello") if framed else "hello")
    explained = framed and config.get("roomPrompt") != ""
    said = asked.agent.instructions
    assert said.startswith('You are the agent "ada". This conversation takes place on "memory"') == explained
    assert bool(said) == explained


async def test_a_retried_turn_keeps_the_author(database: Database, tmp_path: Path) -> None:
    """A failed turn keeps its author when it is retried."""
    harness = await open_turn_worker(database, tmp_path)
    asked: Turn = replace(await harness.add_turn("x"), id="trn_failed", origin=ORIGIN, state=TurnState.FAILED)
    async with database.begin() as connection:
        await turns.insert_turn(connection, asked)
    async with harness.transactions.begin("test") as tx:
        new = await retry_in(tx, asked)
    assert new is not None
    assert new.origin == ORIGIN
