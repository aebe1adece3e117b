"""The rules of every agent; a new agent joins by its name in AGENTS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec

import pytest

from agent_tools import RecordingTools, agent_spec, collect_steps, collect_steps_until, turn_input
from example_packages import agent_entry
from gateway.agents.custom.installed_agents import load_agents
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import (
    Agent,
    AgentEvent,
    AgentSpec,
    ApprovalRequired,
    Checkpoint,
    Delta,
    Finished,
    MessageCompleted,
)
from gateway.agents.shell import ShellAgent
from openai_server import OpenAIServer, echo
from vendor_servers import vendor_echo, vendor_server


@dataclass(frozen=True, kw_only=True)
class AgentCase:
    """An agent, its record, and the text that makes it run `ls`."""

    agent: Agent
    spec: AgentSpec
    command_text: str


@asynccontextmanager
async def open_shell_agent() -> AsyncIterator[AgentCase]:
    """Open the built-in shell."""
    yield AgentCase(agent=ShellAgent(), spec=agent_spec(models=("builtin:shell",)), command_text="!ls")


@asynccontextmanager
async def open_model_case() -> AsyncIterator[AgentCase]:
    """Open the model agent on a loopback model that calls bash on request."""
    async with OpenAIServer(echo) as server:
        vendors = Vendors(trusted_base_urls=(server.base_url,))
        async with open_model_agent(vendors) as agent:
            yield AgentCase(agent=agent, spec=agent_spec(server.base_url), command_text="run: ls")


@asynccontextmanager
async def open_anthropic_case() -> AsyncIterator[AgentCase]:
    """Open the model agent on a loopback model of Anthropic's API."""
    async with vendor_server(vendor_echo) as server:
        vendors = Vendors(anthropic_api_key="key-a", anthropic_base_url=server.base_url)
        async with open_model_agent(vendors) as agent:
            spec = agent_spec(models=("anthropic:loopback",))
            yield AgentCase(agent=agent, spec=spec, command_text="run: ls")


@asynccontextmanager
async def open_library_case() -> AsyncIterator[AgentCase]:
    """Open the model agent on a loopback model that is used through pydantic-ai."""
    async with vendor_server(vendor_echo) as server:
        vendors = Vendors(google_api_key="key-g", google_base_url=server.base_url)
        async with open_model_agent(vendors) as agent:
            spec = agent_spec(models=("google:loopback",))
            yield AgentCase(agent=agent, spec=spec, command_text="run: ls")


def open_example(example: str, library: str = "") -> Callable[[], AbstractAsyncContextManager[AgentCase]]:
    """Return what opens an example package's agent by its entry point; it needs a library."""

    @asynccontextmanager
    async def open_case() -> AsyncIterator[AgentCase]:
        if library and find_spec(library) is None:
            pytest.skip(f"{library} is not installed: it is a dependency of examples/{example} alone")
        async with OpenAIServer(echo) as server:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("OPENAI_BASE_URL", server.base_url)
                patch.setenv("OPENAI_API_KEY", "key")
                with agent_entry(example) as entry:
                    agent = load_agents([entry])[entry.name]
                spec = agent_spec(models=(f"entry:{entry.name}",))
                yield AgentCase(agent=agent, spec=spec, command_text="run: ls")

    return open_case


AGENTS: dict[str, Callable[[], AbstractAsyncContextManager[AgentCase]]] = {
    "shell": open_shell_agent,
    "model": open_model_case,
    "anthropic": open_anthropic_case,
    "library": open_library_case,
    "function": open_example("agent-function"),
    "pydantic-ai": open_example("agent-pydantic-ai"),
    "langgraph": open_example("agent-langgraph", "langgraph"),
}


@pytest.fixture(params=sorted(AGENTS))
async def agent_case(request: pytest.FixtureRequest) -> AsyncIterator[AgentCase]:
    """Return each agent in turn."""
    async with AGENTS[request.param]() as opened:
        yield opened


def final_steps(steps: list[AgentEvent]) -> list[AgentEvent]:
    """Return the steps that end a turn."""
    return [step for step in steps if isinstance(step, Finished | ApprovalRequired)]


async def test_a_turn_ends_once_and_last(agent_case: AgentCase) -> None:
    """The last step, and no other, is Finished or ApprovalRequired."""
    steps = await collect_steps(agent_case.agent, turn_input(agent_case.spec, "hello"), RecordingTools())
    assert final_steps(steps) == [steps[-1]]


async def test_the_output_was_said(agent_case: AgentCase) -> None:
    """What a turn finishes with is its last complete message."""
    steps = await collect_steps(
        agent_case.agent, turn_input(agent_case.spec, agent_case.command_text), RecordingTools()
    )
    end = steps[-1]
    assert isinstance(end, Finished)
    assert end.output
    assert [step.text for step in steps if isinstance(step, MessageCompleted)][-1] == end.output


async def test_deltas_are_the_message_that_follows_them(agent_case: AgentCase) -> None:
    """The parts since the last complete message make up the next one, where an agent sends parts."""
    steps = await collect_steps(
        agent_case.agent, turn_input(agent_case.spec, agent_case.command_text), RecordingTools()
    )
    parts = ""
    for step in steps:
        if isinstance(step, Delta):
            parts += step.text
        elif isinstance(step, MessageCompleted):
            assert parts in {"", step.text}
            parts = ""
    assert parts == ""


async def test_calls_go_through_the_tools(agent_case: AgentCase) -> None:
    """Commands reach the tools with their arguments, under an id."""
    tools = RecordingTools()
    await collect_steps(agent_case.agent, turn_input(agent_case.spec, agent_case.command_text), tools)
    assert tools.executed == [("bash", {"command": "ls"})]
    assert all(tools.done)


async def test_a_second_attempt_carries_nothing_out_twice(agent_case: AgentCase) -> None:
    """With the checkpoints of a first attempt, a whole second one repeats no call."""
    tools, given = RecordingTools(), turn_input(agent_case.spec, agent_case.command_text)
    first = await collect_steps(agent_case.agent, given, tools)
    saved = [step.state for step in first if isinstance(step, Checkpoint)]
    for state in [saved[0] if saved else None, saved[-1] if saved else None]:
        again = replace(given, attempt=2, checkpoint=state)
        steps = await collect_steps(agent_case.agent, again, tools)
        assert isinstance(steps[-1], Finished)
    assert len(tools.executed) == 1


async def test_a_jobs_result_is_a_turn_like_any_other(agent_case: AgentCase) -> None:
    """A follow-up turn ends with a text about the job."""
    given = turn_input(agent_case.spec, "job_1 ended with exit code 0: all green", trigger="job")
    steps = await collect_steps(agent_case.agent, given, RecordingTools())
    end = steps[-1]
    assert isinstance(end, Finished)
    assert "all green" in end.output


async def test_cancelling_stops_the_running_call(agent_case: AgentCase) -> None:
    """Cancelling the iteration cancels the tool that runs, and raises CancelledError."""
    tools = RecordingTools()
    tools.block_on = "ls"
    task = asyncio.create_task(
        collect_steps(agent_case.agent, turn_input(agent_case.spec, agent_case.command_text), tools)
    )
    async with asyncio.timeout(10):
        await tools.blocking.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert tools.stopped


async def test_what_tools_raise_passes_through(agent_case: AgentCase) -> None:
    """A fault of the gateway itself, such as a lost lease, is not mistaken for the agent's."""

    class LeaseGone(Exception):
        """Another gateway took the conversation."""

    def fail(_name: str, _args: object) -> str:
        raise LeaseGone

    with pytest.raises(LeaseGone):
        await collect_steps(
            agent_case.agent,
            turn_input(agent_case.spec, agent_case.command_text),
            RecordingTools(answer=fail),
        )


async def test_two_turns_at_once_do_not_meet(agent_case: AgentCase) -> None:
    """An agent is stateless: concurrent conversations do not mix."""
    orders = [agent_case.command_text.replace("ls", f"ls {number}") for number in range(5)]
    tools = [RecordingTools() for _ in orders]
    await asyncio.gather(
        *(
            collect_steps(agent_case.agent, turn_input(agent_case.spec, order), each)
            for order, each in zip(orders, tools, strict=True)
        )
    )
    ran = [[args["command"] for _, args in each.executed] for each in tools]
    assert ran == [[f"ls {number}"] for number in range(5)]


async def test_leaving_after_the_first_step_is_allowed(agent_case: AgentCase) -> None:
    """A consumer may stop at any step, and the agent runs again afterwards."""
    await collect_steps_until(
        agent_case.agent, turn_input(agent_case.spec, "hello"), RecordingTools(), lambda _: True
    )
    steps = await collect_steps(agent_case.agent, turn_input(agent_case.spec, "hello"), RecordingTools())
    assert isinstance(steps[-1], Finished)
