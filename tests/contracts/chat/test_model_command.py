"""The commands `/model`, `/compact` and `/verbose`, in a chat without a model behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from channels.message import Address
from delivery.database.engine import Database
from gateway.conversations.commands.compaction import NO_MODEL, QUEUED_ALREADY, input_trigger
from gateway.conversations.commands.room_verbosity import RoomVerbosity
from gateway.records.agent import OperatorModel, agent_spec
from gateway.store.accounts import records
from gateway.store.turns import turns
from ingress_harness import IngressHarness, open_ingress_harness

OPERATOR = OperatorModel(
    models=("openai:big", "ollama:spare"), choices=("openai:small", "anthropic:other", "google:other")
)


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """Return an ingress whose operator allows some models."""
    opened = await open_ingress_harness(database, operator_model=OPERATOR)
    async with database.begin() as connection:
        first = opened.agents["first"]
        await records.update_record(connection, replace(first, config={"model": "default"}))
    return opened


async def models_of_next_turn(harness: IngressHarness) -> tuple[str, ...]:
    """Say something and return the models that answer it."""
    await harness.send_message("hello")
    turn = (await harness.list_open_turns())[-1]
    async with harness.database.begin() as connection:
        agent = await records.get_by_id(connection, turn.agent)
        await turns.request_cancel(connection, turn.id)
    assert agent is not None
    return agent_spec(agent, OPERATOR, turn.model).models


async def test_a_model_is_selected_among_those_allowed(harness: IngressHarness) -> None:
    """Later turns use it, a model that is not allowed is refused with the list, and `default` resets."""
    assert await models_of_next_turn(harness) == ("openai:big", "ollama:spare")
    await harness.send_command("model")
    assert "- `openai:big` (in use)" in harness.replies[-1]
    assert "- `openai:small`\n" in harness.replies[-1]
    await harness.send_command("model", "small")
    assert harness.replies[-1] == "Your next message is answered by `openai:small`."
    assert await models_of_next_turn(harness) == ("openai:small", "ollama:spare")
    for wanted in ("openai:huge", "other", "` hi"):
        await harness.send_command("model", wanted)
        assert "is not allowed here" in harness.replies[-1]
        assert "- `openai:small` (in use)" in harness.replies[-1]
    assert await models_of_next_turn(harness) == ("openai:small", "ollama:spare")
    await harness.send_command("model", "default")
    assert "the agent's own model" in harness.replies[-1]
    assert await models_of_next_turn(harness) == ("openai:big", "ollama:spare")


async def test_a_choice_that_is_no_longer_allowed_is_not_used(harness: IngressHarness) -> None:
    """The agent's own list replaces the operator's; without another model there is no choice."""
    await harness.send_command("model", "small")
    async with harness.database.begin() as connection:
        config = {"model": "openai:big", "modelChoices": []}
        await records.update_record(connection, replace(harness.agents["first"], config=config))
    assert await models_of_next_turn(harness) == ("openai:big",)
    await harness.send_command("model")
    assert (
        harness.replies[-1] == "This conversation uses `openai:big`; there is no other model to choose from."
    )


async def test_a_summary_is_queued_once(harness: IngressHarness) -> None:
    """Its turn is known by its trigger; an agent without a model has nothing to summarise."""
    await harness.send_command("compact")
    await harness.send_command("compact")
    assert harness.replies[-1] == QUEUED_ALREADY
    (turn,) = await harness.list_open_turns()
    assert input_trigger(turn) == "compact"
    async with harness.database.begin() as connection:
        await turns.request_cancel(connection, turn.id)
        await records.update_record(
            connection, replace(harness.agents["first"], config={"model": "builtin:shell"})
        )
    await harness.send_command("compact")
    assert harness.replies[-1] == NO_MODEL


async def test_a_room_keeps_its_verbosity(harness: IngressHarness) -> None:
    """It belongs to the room, beyond `/new` and for all its threads; other rooms have the default."""
    verbosity = RoomVerbosity(harness.database)
    assert await verbosity.get(harness.address()) is None
    await harness.send_command("verbose", "on")
    await harness.send_command("new")
    assert await verbosity.get(harness.address(thread="t")) is True
    assert await verbosity.get(harness.address("elsewhere")) is None
    await harness.send_command("verbose")
    assert harness.replies[-1].startswith("It is on here.")
    await harness.send_command("verbose", "OFF")
    assert await verbosity.get(harness.address()) is False
    assert await verbosity.get(Address(channel="chn_other", room="room")) is None
