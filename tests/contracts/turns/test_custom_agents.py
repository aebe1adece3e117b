"""Agents of installed packages: durable steps, approvals, messages, and what cannot be an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from agent_tools import RecordingTools, agent_spec, approve, collect_steps, turn_input
from delivery.database.engine import Database
from gateway.agents.custom.installed_agents import BrokenAgent, load_agents, to_agent
from gateway.agents.custom.turn import AgentTurn, current_turn
from gateway.agents.model import Vendors
from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    ApprovalDecision,
    ApprovalRequired,
    Checkpoint,
    Delta,
    Finished,
    MessageCompleted,
    TurnInput,
    TurnLimits,
)
from gateway.agents.registry import AgentRegistry
from gateway.records.errors import InvalidRecord
from gateway.records.kinds import validate
from gateway.store.turn_state import TurnState
from migrated import migrated_sqlite
from turn_worker import open_turn_worker

SPEC = agent_spec(models=("entry:one",))


def last_state(steps: list[AgentEvent]) -> bytes:
    """Return the state that the last checkpoint or pause holds."""
    return [one.state for one in steps if isinstance(one, Checkpoint | ApprovalRequired)][-1]


def again(given: TurnInput, steps: list[AgentEvent], **changes: Any) -> TurnInput:
    """Return the input of the attempt after one with these events."""
    return replace(given, attempt=given.attempt + 1, checkpoint=last_state(steps), **changes)


async def test_steps_and_messages_are_not_repeated() -> None:
    """A later attempt gets a step's saved result, and sends no completed message a second time."""
    executed: list[str] = []
    crash = [True]

    async def agent(turn: AgentTurn) -> str:
        async def fetch() -> dict[str, int]:
            executed.append("fetch")
            return {"parcels": 3}

        first = await turn.step("fetch", fetch)
        second = await turn.step("fetch", fetch)
        await turn.say("I counted ")
        await turn.say("them.")
        await turn.message()
        if crash:
            crash.clear()
            raise OSError("the process died")
        return f"{first['parcels'] + second['parcels']} parcels"

    custom, given = to_agent("one", agent), turn_input(SPEC)
    steps: list[AgentEvent] = []

    async def run_until_the_crash() -> None:
        async for step in custom.run(given, RecordingTools()):
            steps.append(step)  # noqa: PERF401 - kept although the iteration raises

    with pytest.raises(OSError, match="died"):
        await run_until_the_crash()
    assert [one.text for one in steps if isinstance(one, MessageCompleted)] == ["I counted them."]
    later = await collect_steps(custom, again(given, steps), RecordingTools())
    assert executed == ["fetch", "fetch"]
    assert [one.text for one in later if isinstance(one, MessageCompleted | Delta)] == ["6 parcels"]
    end = later[-1]
    assert isinstance(end, Finished)
    assert end.history is not None
    (part,) = end.history.messages[-1]["parts"]
    assert part["content"] == "I counted them.\n\n6 parcels"


async def test_calls_that_run_together_wait_together() -> None:
    """The turn pauses once for all calls that need a person; the others are executed once."""

    async def agent(turn: AgentTurn) -> str:
        commands = ("ls", "rm one", "rm two")
        results = await asyncio.gather(*(turn.call("bash", command=one) for one in commands))
        return " | ".join(one.content for one in results)

    tools = RecordingTools(needs_approval_for=("rm one", "rm two"))
    custom, given = to_agent("one", agent), turn_input(SPEC)
    steps = await collect_steps(custom, given, tools)
    pause = steps[-1]
    assert isinstance(pause, ApprovalRequired)
    assert sorted(one.args["command"] for one in pause.calls) == ["rm one", "rm two"]
    first, second = sorted(pause.calls, key=lambda one: str(one.args["command"]))
    decisions = {
        **approve(first.id),
        second.id: ApprovalDecision(approved=False, by="ann", comment="not that one"),
    }
    tools.approved = {first.id}
    later = await collect_steps(custom, again(given, steps, decisions=decisions), tools)
    end = later[-1]
    assert isinstance(end, Finished)
    assert "not that one" in end.output
    assert [args["command"] for _, args in tools.executed] == ["ls", "rm one"]


async def test_a_turn_pauses_although_a_step_beside_the_call_failed() -> None:
    """A function that goes on after a failed step still waits for the person, and does not hang."""

    async def fail() -> None:
        raise ValueError("no")

    async def agent(turn: AgentTurn) -> str:
        both = (turn.call("bash", command="rm one"), turn.step("fails", fail))
        return repr(await asyncio.gather(*both, return_exceptions=True))

    tools = RecordingTools(needs_approval_for=("rm one",))
    async with asyncio.timeout(60):
        steps = await collect_steps(to_agent("one", agent), turn_input(SPEC), tools)
    assert isinstance(steps[-1], ApprovalRequired)


async def test_a_step_that_fails_ends_the_turn_though_a_call_waits() -> None:
    """No question is left open when the function ends with the error."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def agent(turn: AgentTurn) -> str:
        await asyncio.gather(turn.call("bash", command="rm one"), turn.step("fails", fail))
        return "unreachable"

    tools = RecordingTools(needs_approval_for=("rm one",))
    with pytest.raises(ValueError, match="no"):
        await collect_steps(to_agent("one", agent), turn_input(SPEC), tools)


async def test_a_generator_streams_its_parts() -> None:
    """What an async generator yields are the parts of one answer; tools find their turn by themselves."""

    async def agent(turn: AgentTurn) -> AsyncIterator[str]:
        assert current_turn() is turn
        yield "one "
        yield "two"

    steps = await collect_steps(to_agent("one", agent), turn_input(SPEC), RecordingTools())
    assert [one.text for one in steps if isinstance(one, Delta)] == ["one ", "two"]
    end = steps[-1]
    assert isinstance(end, Finished)
    assert end.output == "one two"


async def _silent(_turn: AgentTurn) -> None:
    """Say nothing."""


async def _wrong(_turn: AgentTurn) -> Any:
    return 7


async def _slow(turn: AgentTurn) -> str:
    return str(await turn.step("slow", asyncio.Event().wait))


async def _unsaved(turn: AgentTurn) -> str:
    async def make() -> object:
        return object()

    return str(await turn.step("make", make))


async def _cancelled(_turn: AgentTurn) -> str:
    raise asyncio.CancelledError


async def _large(turn: AgentTurn) -> str:
    async def make() -> str:
        return "x" * 300_000

    return str(await turn.step("make", make))


@pytest.mark.parametrize(
    ("agent", "reported"),
    [
        (_silent, "gave no answer"),
        (_wrong, "answered with int"),
        (_slow, "step 'slow' took longer"),
        (_cancelled, "agent 'one' raised CancelledError, but nothing cancelled it"),
        (_unsaved, "cannot be saved as JSON"),
        (_large, "300002 bytes"),
    ],
)
async def test_what_an_agent_does_wrong_is_named(agent: Any, reported: str) -> None:
    """The person reads what is wrong: no answer, no text, a step without a result that can be kept."""
    spec = agent_spec(models=("entry:one",), limits=TurnLimits(step_timeout=0.1))
    with pytest.raises(AgentError, match=reported):
        await collect_steps(to_agent("one", agent), turn_input(spec), RecordingTools())


async def test_an_agent_that_ignores_one_cancellation_is_stopped() -> None:
    """A framework may swallow a cancellation; the next one stops the function."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def agent(_turn: AgentTurn) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            started.clear()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    task = asyncio.create_task(collect_steps(to_agent("one", agent), turn_input(SPEC), RecordingTools()))
    async with asyncio.timeout(60):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended.is_set()


async def _echo(turn: AgentTurn) -> str:
    return turn.prompt


async def _two(turn: AgentTurn, other: str) -> str:
    return turn.prompt + other


@pytest.mark.parametrize("value", ["text", lambda turn: turn, _two, object()])
def test_what_cannot_be_an_agent_is_refused(value: object) -> None:
    """The error names the agent and what is accepted."""
    with pytest.raises(BrokenAgent, match=r"'one'.*async function"):
        to_agent("one", value)


def test_a_package_that_does_not_load_is_named() -> None:
    """Neither a missing module, nor a name twice, nor an unusable name is passed over."""
    missing = EntryPoint(name="one", value="no_such_module:agent", group="dovecote.agents")
    with pytest.raises(BrokenAgent, match="no_such_module"):
        load_agents([missing])
    echo = EntryPoint(name="one", value=f"{__name__}:_echo", group="dovecote.agents")
    with pytest.raises(BrokenAgent, match="'two words'"):
        load_agents([EntryPoint(name="two words", value=echo.value, group=echo.group)])
    custom: Agent = to_agent("one", _echo)
    assert AgentRegistry(Vendors(), {"one": custom}).get(SPEC) is custom
    with pytest.raises(AgentError, match="entry:other"):
        AgentRegistry(Vendors(), {"one": custom}).get(agent_spec(models=("entry:other",)))
    with pytest.raises(InvalidRecord) as refused:
        validate("agent", {"model": "entry:other"})
    assert [one.pointer for one in refused.value.problems] == ["/config/model"]


async def test_the_worker_runs_its_turns(tmp_path: Path) -> None:
    """With the gateway's own tools, a call is a step of the turn and the answer is stored."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    harness = await open_turn_worker(database, tmp_path, model="ollama:one")

    async def agent(turn: AgentTurn) -> str:
        names = {one.name for one in turn.tools}
        result = await turn.call("memory_search", query="parcels")
        return f"{'memory_search' in names} {result.ok} {len(turn.history)}"

    async with harness.running(to_agent("one", agent)):
        for past in ("0", "2"):
            turn = await harness.add_turn("where are the parcels?")
            await harness.wake()
            done = await harness.wait_for_state(turn, TurnState.COMPLETED)
            assert done.output == f"True True {past}"
    await database.close()
