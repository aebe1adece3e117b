"""Tools for agents under test: they run nothing, record every call, and ask for approvals as configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gateway.agents.port import (
    Agent,
    AgentEvent,
    AgentSpec,
    ApprovalDecision,
    ToolResult,
    Tools,
    ToolSpec,
    TurnInput,
    TurnLimits,
)

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = ToolSpec(name="bash", description="Run a command.", schema=COMMAND)
STATUS = ToolSpec(name="async_status", description="Tell of background jobs.", schema={"type": "object"})


class RecordingTools(Tools):
    """Answers every call with `answer`; `needs_approval_for` commands wait until `approved` has their id.

    Like the gateway's tools it runs a call id once and repeats the recorded result afterwards.
    """

    def __init__(
        self,
        *,
        needs_approval_for: Sequence[str] = (),
        answer: Callable[[str, Mapping[str, Any]], str] = lambda name, args: f"{name} {dict(args)} done",
        approved: Sequence[str] = (),
    ) -> None:
        self._needs_approval = needs_approval_for
        self._answer = answer
        self.approved = set(approved)
        self.done: dict[str, ToolResult] = {}
        self.executed: list[tuple[str, Mapping[str, Any]]] = []
        self.stopped = False
        self.blocking = asyncio.Event()
        self.block_on = ""

    def list(self) -> Sequence[ToolSpec]:
        """Return bash and async_status."""
        return (BASH, STATUS)

    async def needs_approval(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> bool:
        """Ask for careful commands, unless a person typed them."""
        return (
            not typed_by_asker and args.get("command") in self._needs_approval and call not in self.approved
        )

    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Record the call, or repeat its result; `block_on` is a command that never ends."""
        if call in self.done:
            return self.done[call]
        if self.block_on and args.get("command") == self.block_on:
            await self._block()
        self.executed.append((name, dict(args)))
        result = ToolResult(ok=True, content=self._answer(name, args))
        self.done[call] = result
        return result

    async def _block(self) -> None:
        self.blocking.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped = True


def agent_spec(base_url: str | None = None, **changes: Any) -> AgentSpec:
    """Return an agent record with one loopback model."""
    values: dict[str, Any] = {
        "id": "agt_1",
        "name": "tester",
        "models": ("openai:loopback",),
        "instructions": "Be brief.",
        "base_url": base_url,
        "limits": TurnLimits(),
    }
    return AgentSpec(**(values | changes))


def turn_input(agent: AgentSpec, text: str = "hello", **changes: Any) -> TurnInput:
    """Return a first attempt at a turn."""
    values: dict[str, Any] = {
        "turn": "trn_1",
        "conversation": "cnv_1",
        "attempt": 1,
        "trigger": "message",
        "input": text,
        "agent": agent,
    }
    return TurnInput(**(values | changes))


async def collect_steps(agent: Agent, given: TurnInput, tools: Tools) -> list[AgentEvent]:
    """Return all steps of one attempt."""
    return [step async for step in agent.run(given, tools)]


async def collect_steps_until(
    agent: Agent, given: TurnInput, tools: Tools, last: Callable[[AgentEvent], bool]
) -> list[AgentEvent]:
    """Return the steps up to the first one that `last` accepts, then leave, as a crash would."""
    taken: list[AgentEvent] = []
    steps: AsyncIterator[AgentEvent] = agent.run(given, tools)
    async with aclosing(steps):  # type: ignore[type-var]
        async for step in steps:
            taken.append(step)
            if last(step):
                break
    return taken


def approve(*calls: str, by: str = "ann") -> dict[str, ApprovalDecision]:
    """Return decisions that approve calls."""
    return {call: ApprovalDecision(approved=True, by=by) for call in calls}
