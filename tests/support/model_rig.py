"""A model agent on a loopback model, and what tests ask about the steps of a turn."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_tools import RecordingTools, steps_of
from gateway.agents.model import ModelAgent, Vendors, open_model_agent
from gateway.agents.port import AgentError, Asked, Finished, Said, Step, Work
from openai_server import OpenAIServer, Script, ToolCall

LS = ToolCall(name="bash", args={"command": "ls"})
REMOVE = ToolCall(name="bash", args={"command": "rm -r build"})


@asynccontextmanager
async def loopback(script: Script, **vendors: Any) -> AsyncIterator[tuple[OpenAIServer, ModelAgent]]:
    """Run a scripted model and an agent that may use it."""
    async with OpenAIServer(script) as server:
        settings: dict[str, Any] = {"trusted_base_urls": (server.base_url,), "retries": 0}
        async with open_model_agent(Vendors(**(settings | vendors))) as agent:
            yield server, agent


def said(steps: list[Step]) -> list[str]:
    """Return the complete messages among steps."""
    return [step.text for step in steps if isinstance(step, Said)]


def finished(steps: list[Step]) -> Finished:
    """Return the last step of a finished turn."""
    assert isinstance(steps[-1], Finished)
    return steps[-1]


def asked(steps: list[Step]) -> Asked:
    """Return the last step of a turn that waits for people."""
    assert isinstance(steps[-1], Asked)
    return steps[-1]


async def failure_of(agent: ModelAgent, given: Work, tools: RecordingTools | None = None) -> AgentError:
    """Return the error that an attempt ends with."""
    with pytest.raises(AgentError) as caught:
        await steps_of(agent, given, tools or RecordingTools())
    return caught.value


def closed_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port
