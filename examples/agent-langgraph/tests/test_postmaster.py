"""The graph is found by its entry point, and its node calls the turn's tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.agents.custom.installed_agents import load_agents
from gateway.agents.port import AgentSpec, Finished, ToolResult, Tools, ToolSpec, TurnInput


class EchoTool(Tools):
    """The tool bash, which returns the command."""

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


async def outputs(text: str) -> list[str]:
    """Return what the graph finishes with."""
    spec = AgentSpec(id="agt_1", name="ada", models=("entry:postmaster",))
    given = TurnInput(
        turn="trn_1", conversation="cnv_1", attempt=1, trigger="message", input=text, agent=spec
    )
    agent = load_agents()["postmaster"]
    return [event.output async for event in agent.run(given, EchoTool()) if isinstance(event, Finished)]


async def test_it_runs_a_command() -> None:
    """The node `deliver` calls the turn's tool."""
    assert await outputs("run: ls") == ["ran ls"]


async def test_it_answers() -> None:
    """The node `answer` needs no tool."""
    assert await outputs("hello") == ["You wrote: hello"]
