"""A model agent on a loopback model, and what tests ask about the steps of a turn."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_tools import RecordingTools, collect_steps
from gateway.agents.history import HistoryEntry, decode_entry, effective, encode_entry
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.model.agent import ModelAgent
from gateway.agents.port import (
    AgentError,
    AgentEvent,
    ApprovalRequired,
    Finished,
    MessageCompleted,
    TurnInput,
)
from openai_server import OpenAIServer, Script, ToolCall

LS = ToolCall(name="bash", args={"command": "ls"})
REMOVE = ToolCall(name="bash", args={"command": "rm -r build"})


@asynccontextmanager
async def open_loopback_model(
    script: Script, **vendors: Any
) -> AsyncIterator[tuple[OpenAIServer, ModelAgent]]:
    """Run a scripted model and an agent that may use it."""
    async with OpenAIServer(script) as server:
        settings: dict[str, Any] = {"trusted_base_urls": (server.base_url,), "retries": 0}
        async with open_model_agent(Vendors(**(settings | vendors))) as agent:
            yield server, agent


def completed_messages(steps: list[AgentEvent]) -> list[str]:
    """Return the complete messages among steps."""
    return [step.text for step in steps if isinstance(step, MessageCompleted)]


def finished_step(steps: list[AgentEvent]) -> Finished:
    """Return the last step of a finished turn."""
    assert isinstance(steps[-1], Finished)
    return steps[-1]


def history_of(steps: list[AgentEvent], *earlier: HistoryEntry) -> tuple[HistoryEntry, ...]:
    """Return the history after a finished turn, as the gateway passes it to the next one."""
    entry = finished_step(steps).history
    assert entry is not None
    return tuple(effective([*earlier, decode_entry(encode_entry(entry)) or entry]))


def approval_step(steps: list[AgentEvent]) -> ApprovalRequired:
    """Return the last step of a turn that waits for an approval."""
    assert isinstance(steps[-1], ApprovalRequired)
    return steps[-1]


async def failure_of(agent: ModelAgent, given: TurnInput, tools: RecordingTools | None = None) -> AgentError:
    """Return the error that an attempt ends with."""
    with pytest.raises(AgentError) as caught:
        await collect_steps(agent, given, tools or RecordingTools())
    return caught.value


def closed_port() -> int:
    """Return a loopback port without a listener."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port
