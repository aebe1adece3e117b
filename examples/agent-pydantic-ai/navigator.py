"""An example of an agent for Dovecote: an Agent of pydantic-ai, with a tool of its own."""

from __future__ import annotations

import os

from pydantic_ai import Agent, RunContext

from gateway.agents.custom.turn import AgentTurn

agent = Agent(
    os.environ.get("NAVIGATOR_MODEL", "openai-chat:gpt-5-mini"),
    deps_type=AgentTurn,
    instructions="You plan routes of carrier pigeons. Use bash to look at files.",
    defer_model_check=True,
)


@agent.tool
async def flight_time(context: RunContext[AgentTurn], kilometres: float) -> str:
    """Return how long a pigeon needs for a distance."""

    async def compute() -> str:
        return f"{kilometres / 80:.1f} hours"

    return str(await context.deps.step(f"flight time of {kilometres}", compute))
