"""Prompts of MCP servers as commands: a message that names one reaches the agent as the prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from delivery.database.engine import Database
from mcp_agents import Agents
from mcp_services import McpService, mcp_service
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, open_turn_worker


@pytest.fixture
async def service() -> AsyncIterator[McpService]:
    """A server of the official package on loopback."""
    async with mcp_service() as running:
        yield running


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


async def test_a_command_becomes_the_prompt_of_a_server(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """Arguments are given in order or by name; the rest of the line belongs to the last one."""
    agents = Agents(harness)
    await agents.configure(sums={"url": service.url})
    for text, name in (
        ("/sums_greet Ada Lovelace", "Ada Lovelace"),
        ("/Sums-Greet@some_bot name='Ada L.'", "Ada L."),
    ):
        turn = await harness.add_turn(text, running=True)
        async with harness.open_tools(agents.mcp_tools.open, turn) as (_tools, external):
            assert external.prompt == f"Say hello to {name}."
            assert external.with_prompt(turn, lambda one: one.input)(turn) == external.prompt


async def test_a_command_without_its_arguments_is_explained(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """The model gets what is missing; a text that is no command of a server stays as it is."""
    agents = Agents(harness)
    await agents.configure(sums={"url": service.url})
    turn = await harness.add_turn("/sums_greet", running=True)
    async with harness.open_tools(agents.mcp_tools.open, turn) as (_tools, external):
        assert external.prompt is None
        assert any("name is missing; use /sums_greet name" in note for note in external.notes)
    for text in ("/sums_unknown x", "please /sums_greet Ada", "/other_greet Ada"):
        turn = await harness.add_turn(text, running=True)
        async with harness.open_tools(agents.mcp_tools.open, turn) as (_tools, external):
            assert (external.prompt, external.notes) == (None, ())


async def test_a_server_whose_prompts_are_not_offered_has_no_commands(
    harness: TurnWorkerHarness, service: McpService
) -> None:
    """The record decides whether prompts are read."""
    agents = Agents(harness)
    await agents.configure(sums={"url": service.url, "prompts": False})
    turn = await harness.add_turn("/sums_greet Ada", running=True)
    async with harness.open_tools(agents.mcp_tools.open, turn) as (_tools, external):
        assert external.prompt is None
