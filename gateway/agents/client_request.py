"""What a client's request adds to one turn: instructions, tools that the client executes, and an echo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.agents.port import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The part of a request that is stored with its turn.

    `instructions` are added to the agent's, for this turn alone. `tools` are offered to the model beside the
    agent's own; the client executes them. `echo` is what responses repeat to the client. The turn of a
    `heartbeat` may end without a message.
    """

    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    echo: Mapping[str, Any] = field(default_factory=dict)
    heartbeat: bool = False

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of the client's tools."""
        return frozenset(tool.name for tool in self.tools)

    @property
    def changes_turn(self) -> bool:
        """Whether the request adds more than an echo, so that its turn cannot be shared."""
        return bool(self.instructions or self.tools)

    def to_json(self) -> dict[str, Any] | None:
        """Return the stored form; None for a request that adds nothing."""
        tools = [
            {"name": one.name, "description": one.description, "schema": dict(one.schema)}
            for one in self.tools
        ]
        stored = {
            "instructions": self.instructions,
            "tools": tools,
            "echo": dict(self.echo),
            "heartbeat": self.heartbeat,
        }
        return {name: value for name, value in stored.items() if value} or None

    @classmethod
    def parse(cls, stored: Mapping[str, Any] | None) -> ClientRequest:
        """Return the request of a stored form."""
        if not stored:
            return cls()
        tools = tuple(
            ToolSpec(name=one["name"], description=one["description"], schema=one["schema"])
            for one in stored.get("tools", ())
        )
        return cls(
            instructions=stored.get("instructions", ""),
            tools=tools,
            echo=stored.get("echo", {}),
            heartbeat=stored.get("heartbeat", False),
        )
