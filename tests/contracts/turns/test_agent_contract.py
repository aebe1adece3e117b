"""What every agent owes the gateway, whoever it is; a new agent joins by its name in AGENTS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from agent_tools import RecordingTools, persona, steps_of, steps_until, work
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import Agent, Asked, Delta, Finished, Persona, Said, Saved, Step
from gateway.agents.shell import ShellAgent
from openai_server import OpenAIServer, echo


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An agent, the record it performs for, and what a person types to make it run `ls`."""

    agent: Agent
    persona: Persona
    order: str


@asynccontextmanager
async def shell() -> AsyncIterator[Bench]:
    """Open the built-in shell."""
    yield Bench(agent=ShellAgent(), persona=persona(models=("builtin:shell",)), order="!ls")


@asynccontextmanager
async def model() -> AsyncIterator[Bench]:
    """Open the model agent on a loopback model that calls bash when told to."""
    async with OpenAIServer(echo) as server:
        vendors = Vendors(trusted_base_urls=(server.base_url,))
        async with open_model_agent(vendors) as agent:
            yield Bench(agent=agent, persona=persona(server.base_url), order="run: ls")


AGENTS: dict[str, Callable[[], AbstractAsyncContextManager[Bench]]] = {"shell": shell, "model": model}


@pytest.fixture(params=sorted(AGENTS))
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Return each agent in turn."""
    async with AGENTS[request.param]() as opened:
        yield opened


def ends(steps: list[Step]) -> list[Step]:
    """Return the steps that end a turn."""
    return [step for step in steps if isinstance(step, Finished | Asked)]


async def test_a_turn_ends_once_and_last(bench: Bench) -> None:
    """The last step, and no other, is Finished or Asked."""
    steps = await steps_of(bench.agent, work(bench.persona, "hello"), RecordingTools())
    assert ends(steps) == [steps[-1]]


async def test_the_output_was_said(bench: Bench) -> None:
    """What a turn finishes with is its last complete message."""
    steps = await steps_of(bench.agent, work(bench.persona, bench.order), RecordingTools())
    end = steps[-1]
    assert isinstance(end, Finished)
    assert end.output
    assert [step.text for step in steps if isinstance(step, Said)][-1] == end.output


async def test_deltas_are_the_message_that_follows_them(bench: Bench) -> None:
    """The parts since the last complete message make up the next one, where an agent sends parts."""
    steps = await steps_of(bench.agent, work(bench.persona, bench.order), RecordingTools())
    parts = ""
    for step in steps:
        if isinstance(step, Delta):
            parts += step.text
        elif isinstance(step, Said):
            assert parts in {"", step.text}
            parts = ""
    assert parts == ""


async def test_calls_go_through_the_tools(bench: Bench) -> None:
    """Commands reach the tools with their arguments, under an id."""
    tools = RecordingTools()
    await steps_of(bench.agent, work(bench.persona, bench.order), tools)
    assert tools.carried_out == [("bash", {"command": "ls"})]
    assert all(tools.done)


async def test_a_second_attempt_carries_nothing_out_twice(bench: Bench) -> None:
    """With the checkpoints of a first attempt, a whole second one repeats no call."""
    tools, given = RecordingTools(), work(bench.persona, bench.order)
    first = await steps_of(bench.agent, given, tools)
    saved = [step.state for step in first if isinstance(step, Saved)]
    for state in [saved[0] if saved else None, saved[-1] if saved else None]:
        again = replace(given, attempt=2, saved=state)
        steps = await steps_of(bench.agent, again, tools)
        assert isinstance(steps[-1], Finished)
    assert len(tools.carried_out) == 1


async def test_a_jobs_result_is_a_turn_like_any_other(bench: Bench) -> None:
    """A follow-up ends with something said of the job."""
    given = work(bench.persona, "job_1 ended with exit code 0: all green", trigger="job")
    steps = await steps_of(bench.agent, given, RecordingTools())
    end = steps[-1]
    assert isinstance(end, Finished)
    assert "all green" in end.output


async def test_cancelling_stops_the_running_call(bench: Bench) -> None:
    """Cancelling the iteration cancels the tool that runs, and raises CancelledError."""
    tools = RecordingTools()
    tools.block_on = "ls"
    task = asyncio.create_task(steps_of(bench.agent, work(bench.persona, bench.order), tools))
    async with asyncio.timeout(10):
        await tools.blocking.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert tools.stopped


async def test_what_tools_raise_passes_through(bench: Bench) -> None:
    """A fault of the gateway itself, such as a lost lease, is not mistaken for the agent's."""

    class LeaseGone(Exception):
        """Another gateway took the conversation."""

    def fail(_name: str, _args: object) -> str:
        raise LeaseGone

    with pytest.raises(LeaseGone):
        await steps_of(bench.agent, work(bench.persona, bench.order), RecordingTools(answer=fail))


async def test_two_turns_at_once_do_not_meet(bench: Bench) -> None:
    """An agent is stateless: conversations performed at the same time keep apart."""
    orders = [bench.order.replace("ls", f"ls {number}") for number in range(5)]
    tools = [RecordingTools() for _ in orders]
    await asyncio.gather(
        *(
            steps_of(bench.agent, work(bench.persona, order), each)
            for order, each in zip(orders, tools, strict=True)
        )
    )
    ran = [[args["command"] for _, args in each.carried_out] for each in tools]
    assert ran == [[f"ls {number}"] for number in range(5)]


async def test_leaving_after_the_first_step_is_allowed(bench: Bench) -> None:
    """A consumer may stop at any step, and the agent performs again afterwards."""
    await steps_until(bench.agent, work(bench.persona, "hello"), RecordingTools(), lambda _: True)
    steps = await steps_of(bench.agent, work(bench.persona, "hello"), RecordingTools())
    assert isinstance(steps[-1], Finished)
