"""The prompt of a turn: its agent with all instructions, and how the turn's input is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.agents.port import AgentSpec
from gateway.config.setting_types import SHELL
from gateway.conversations.message_frame import RoomPlace, framed_input, with_room_prompt
from gateway.environments.environment import Environment
from gateway.memory.prompt import with_notes
from gateway.records.agent import agent_config
from gateway.store.accounts.records import Record
from gateway.store.turns.turns import Turn
from gateway.tools.executor import ToolExecutor
from gateway.tools.external_tools import ExternalTools


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPrompt:
    """What an agent gets beside the history. An agent without a model gets the input as it was written."""

    agent: AgentSpec
    render_input: Callable[[Turn], str]

    @property
    def has_model(self) -> bool:
        """Return whether a language model reads the prompt."""
        return self.agent.models[0] != SHELL

    def with_notes(self, notes: str) -> TurnPrompt:
        """Return the prompt with the notes about the person, room and account."""
        return self._with_instructions(with_notes(self.agent.instructions, notes))

    def with_external_tools(self, external: ExternalTools, turn: Turn) -> TurnPrompt:
        """Return the prompt with notes about missing tools, and with an MCP prompt that the turn names."""
        noted = self._with_instructions(external.add_notes(self.agent.instructions))
        return replace(noted, render_input=external.with_prompt(turn, self.render_input))

    def in_room(
        self,
        record: Record,
        origin: Mapping[str, Any] | None,
        environments: Mapping[str, Environment],
        tools: ToolExecutor,
    ) -> TurnPrompt:
        """Return the prompt with instructions that say in which room the agent is, if it is in one."""
        if origin is None or not self.has_model:
            return self
        place = RoomPlace(
            agent=record.name,
            platform=str(origin.get("platform", "")),
            room=str(origin.get("room", "")),
            workspaces=[name for name, one in environments.items() if name and one.workspace],
            tools=[tool.name for tool in tools.list()],
        )
        room_prompt = agent_config(record).room_prompt
        return self._with_instructions(with_room_prompt(self.agent.instructions, room_prompt, place))

    def _with_instructions(self, instructions: str) -> TurnPrompt:
        return replace(self, agent=replace(self.agent, instructions=instructions))


def prompt_for(agent: AgentSpec) -> TurnPrompt:
    """Return the prompt of an agent with its own instructions alone."""
    prompt = TurnPrompt(agent=agent, render_input=_plain_input)
    return replace(prompt, render_input=framed_input) if prompt.has_model else prompt


def _plain_input(turn: Turn) -> str:
    return turn.input
