"""The agent is found by its entry point, and runs a turn with tools that record their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.agents.custom.installed_agents import load_agents
from gateway.agents.port import AgentSpec, Finished, ToolResult, Tools, ToolSpec, TurnInput


class OneTool(Tools):
    """The tool bash, which prints three words."""

    def list(self) -> Sequence[ToolSpec]:
        """Return bash."""
        return [ToolSpec(name="bash", description="Run a command.", schema={"type": "object"})]

    async def needs_approval(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> bool:
        """Require no approval."""
        return False

    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Return the command."""
        return ToolResult(ok=True, content=f"ran {args['command']}")


def turn(text: str) -> TurnInput:
    """Return a turn with a message."""
    spec = AgentSpec(id="agt_1", name="ada", models=("entry:dispatcher",))
    return TurnInput(turn="trn_1", conversation="cnv_1", attempt=1, trigger="message", input=text, agent=spec)


async def outputs(text: str) -> list[str]:
    """Return what the agent finishes with."""
    agent = load_agents()["dispatcher"]
    return [event.output async for event in agent.run(turn(text), OneTool()) if isinstance(event, Finished)]


async def test_it_runs_a_command() -> None:
    """The command is run with the turn's tool, and its words are counted."""
    assert await outputs("run: ls -l") == ["It printed: ran ls -l\nThat makes 3 words."]


async def test_it_explains_itself() -> None:
    """Another message gets an explanation."""
    assert await outputs("hello") == ["Write `run: COMMAND`. This conversation has 0 earlier messages."]
