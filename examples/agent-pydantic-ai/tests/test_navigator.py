"""The agent is found by its entry point, and answers with a model that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.models.test import TestModel

import navigator
from gateway.agents.custom.installed_agents import load_agents
from gateway.agents.port import AgentSpec, Finished, ToolResult, Tools, ToolSpec, TurnInput


class NoTools(Tools):
    """A turn without tools of the gateway."""

    def list(self) -> Sequence[ToolSpec]:
        """Return nothing."""
        return []

    async def needs_approval(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> bool:
        """Require no approval."""
        return False

    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Refuse every call."""
        return ToolResult(ok=False, content="there are no tools")


def test_the_gateway_finds_the_agent() -> None:
    """Installed beside Dovecote, the package offers one agent."""
    assert "navigator" in load_agents()


async def test_it_uses_its_own_tool() -> None:
    """The agent's tool runs as a durable step of the turn."""
    spec = AgentSpec(id="agt_1", name="ada", models=("entry:navigator",))
    given = TurnInput(
        turn="trn_1", conversation="cnv_1", attempt=1, trigger="message", input="to Ghent?", agent=spec
    )
    with navigator.agent.override(model=TestModel(call_tools=["flight_time"])):
        events = [event async for event in load_agents()["navigator"].run(given, NoTools())]
    end = events[-1]
    assert isinstance(end, Finished)
    assert "0.0 hours" in end.output
