"""The configuration changes while a turn runs or waits: the next call has the present one, decisions hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from delivery.database.engine import Database
from gateway.agents.custom.installed_agents import to_agent
from gateway.agents.custom.turn import AgentTurn
from gateway.agents.port import Agent, ToolResult
from gateway.agents.shell import ShellAgent
from gateway.conversations.approvals import Approvals
from gateway.conversations.call_binding import MAX_QUESTIONS
from gateway.records.records import Records
from gateway.store.accounts import records
from gateway.store.turn_state import FINAL, TurnState
from gateway.store.turns import approvals
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.tools.external.functions import function_tool
from gateway.tools.external_tools import ExternalTools
from gateway.tools.hooks.answer import HookAnswer, HookCall
from gateway.tools.hooks.functions import FunctionHook, hook
from gateway.tools.hooks.turn_hooks import TurnHooks
from gateway.tools.tool import Tool, ToolContext
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker


@dataclass
class Configuration:
    """What can be changed while a turn waits: the target that a hook sets, and whether the tool is there."""

    target: str = ""
    asked: int = -1
    description: str = "Let a bird fly."
    is_offered: bool = True
    flown: list[str] = field(default_factory=list)
    on_flight: Callable[[], Awaitable[None]] | None = None

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[ExternalTools]:
        """Open the tool `fly` and the hook."""
        return self._open(context)

    @asynccontextmanager
    async def _open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        async def fly(bird: str) -> str:
            """Let a bird fly."""
            self.flown.append(bird)
            if self.on_flight is not None:
                await self.on_flight()
            return f"{bird} flies"

        @hook("before_tool")
        async def rename(call: HookCall) -> HookAnswer | None:
            """Set the target."""
            if self.asked >= 0:
                self.asked += 1
                return HookAnswer(args={"bird": f"bird {self.asked}"})
            return HookAnswer(args={"bird": self.target}) if self.target and call.tool == "fly" else None

        fly.__doc__ = self.description
        tools: Mapping[str, Tool] = {"fly": function_tool("fly", fly)} if self.is_offered else {}
        hooks = TurnHooks(turn=context.turn, hooks=[FunctionHook("rename", rename)])
        yield ExternalTools(tools=tools, hooks=hooks)


async def calls_once(turn: AgentTurn) -> str:
    """Call the tool that the message names, and answer with its result."""
    name, _, value = turn.input.partition(" ")
    argument = "question" if name == "ask_person" else "bird"
    result: ToolResult = await turn.call_tool(name, {argument: value})
    return result.content


async def calls_twice(turn: AgentTurn) -> str:
    """Let the bird of the message fly, and then an owl."""
    first = await turn.call_tool("fly", {"bird": turn.input})
    second = await turn.call_tool("fly", {"bird": "owl"})
    return f"{first.content}, {second.content}"


@dataclass(kw_only=True)
class WaitingTurn:
    """Runs turns of an agent whose calls a person must approve."""

    harness: TurnWorkerHarness
    configuration: Configuration
    agent: Agent = field(default_factory=lambda: to_agent("one", calls_once))

    async def begin(self, text: str) -> Turn:
        """Run a turn until it waits."""
        turn = await self.harness.add_turn(text)
        await self.run(turn, TurnState.WAITING)
        return turn

    async def decide(self, turn: Turn, answer: str = "") -> Turn:
        """Approve what waits, or answer it; run the turn until it waits again or has ended."""
        decisions, (asked,) = Approvals(self.harness.transactions), await self.pending(turn)
        if answer:
            await decisions.answer(turn.account, asked.id, answer, by="bob")
        else:
            await decisions.decide(turn.account, asked.id, approved=True, by="bob")
        return await self.run(turn, *FINAL, TurnState.WAITING)

    async def pending(self, turn: Turn) -> list[Approval]:
        """Return the approvals of a turn that are not decided."""
        async with self.harness.database.read() as connection:
            found = await approvals.list_for_turn(connection, turn.id)
        return [one for one in found if one.state == "pending"]

    async def states(self, turn: Turn) -> list[str]:
        """Return the states of a turn's approvals, oldest first."""
        async with self.harness.database.read() as connection:
            return [one.state for one in await approvals.list_for_turn(connection, turn.id)]

    async def set_agent(self, **config: Any) -> None:
        """Change the agent's record."""
        async with self.harness.database.begin() as connection:
            (record,) = await records.list_by_kind(connection, self.harness.agent.account, "agent")
            await records.update_record(connection, replace(record, config={**record.config, **config}))

    async def delete_agent(self) -> None:
        """Delete the agent's record."""
        async with self.harness.database.begin() as connection:
            (record,) = await records.list_by_kind(connection, self.harness.agent.account, "agent")
            await Records(self.harness.vault).delete(connection, record)

    async def run(self, turn: Turn, *states: TurnState) -> Turn:
        """Run turns until this one is in one of the states, and return it."""
        await self.harness.wake()
        async with self.harness.running(self.agent):
            return await self.harness.wait_for_state(turn, *states)


@pytest.fixture
async def waiting(tmp_path: Path) -> AsyncIterator[WaitingTurn]:
    """An agent of a package, whose calls need an approval."""
    database, configuration = Database(await migrated_sqlite(tmp_path / "gateway.db")), Configuration()
    harness = await open_turn_worker(database, tmp_path)
    sandbox = await add_sandbox_record(database, harness.agent.account, permissionMode="ask")
    harness.open_external_tools = configuration.open
    one = WaitingTurn(harness=harness, configuration=configuration)
    await one.set_agent(model="entry:one", sandbox=sandbox.id)
    yield one
    await database.close()


@pytest.mark.parametrize(("before", "after", "runs"), [("", "dove", "dove"), ("dove", "", "ada")])
async def test_a_call_that_a_hook_changes_after_the_approval_is_asked_about_again(
    waiting: WaitingTurn, before: str, after: str, runs: str
) -> None:
    """The first approval executes nothing else, and the second executes what it shows, once."""
    waiting.configuration.target = before
    turn = await waiting.begin("fly ada")
    waiting.configuration.target = after
    assert (await waiting.decide(turn)).state is TurnState.WAITING
    assert waiting.configuration.flown == []
    (asked,) = await waiting.pending(turn)
    assert asked.args == {"bird": runs}
    assert await waiting.states(turn) == ["void", "pending"]
    ended = await waiting.decide(turn)
    assert (ended.state, ended.output) == (TurnState.COMPLETED, f"{runs} flies")
    assert waiting.configuration.flown == [runs]


async def test_a_call_that_changes_after_each_approval_is_refused_in_the_end(waiting: WaitingTurn) -> None:
    """A hook that gives other arguments each time does not ask people without end, and nothing runs."""
    waiting.configuration.asked = 0
    turn = await waiting.begin("fly ada")
    for _ in range(MAX_QUESTIONS - 1):
        turn = await waiting.decide(turn)
        assert turn.state is TurnState.WAITING
    ended = await waiting.decide(turn)
    assert (ended.state, waiting.configuration.flown) == (TurnState.COMPLETED, [])
    assert f"approved this call {MAX_QUESTIONS} times" in (ended.output or "")
    assert await waiting.states(turn) == [*["void"] * (MAX_QUESTIONS - 1), "approved"]


async def test_a_call_of_a_tool_that_states_something_else_is_asked_about_again(waiting: WaitingTurn) -> None:
    """A person approved what the tool was described as, so its approval ends with that description."""
    turn = await waiting.begin("fly ada")
    waiting.configuration.description = "Let a bird fly, and sell it."
    assert (await waiting.decide(turn)).state is TurnState.WAITING
    assert waiting.configuration.flown == []
    assert await waiting.states(turn) == ["void", "pending"]
    ended = await waiting.decide(turn)
    assert (ended.state, waiting.configuration.flown) == (TurnState.COMPLETED, ["ada"])


async def test_a_call_of_a_tool_that_is_gone_is_not_asked_about_again(waiting: WaitingTurn) -> None:
    """The approved call fails with the reason at once, also if the sandbox was changed too."""
    turn = await waiting.begin("fly ada")
    waiting.configuration.is_offered = False
    other = await add_sandbox_record(
        waiting.harness.database, turn.account, name="larger", permissionMode="ask", memoryLimit=1024
    )
    await waiting.set_agent(sandbox=other.id)
    ended = await waiting.decide(turn)
    assert ended.state is TurnState.COMPLETED
    assert "there is no tool 'fly'" in (ended.output or "")


async def test_an_answer_counts_although_the_question_is_not_offered_any_more(waiting: WaitingTurn) -> None:
    """The agent gets what the person wrote after the record has lost the tool."""
    turn = await waiting.begin("ask_person Which bird?")
    await waiting.set_agent(tools=["bash"])
    ended = await waiting.decide(turn, answer="the dove")
    assert (ended.state, ended.output) == (TurnState.COMPLETED, "the dove")


async def test_a_turn_fails_if_another_kind_of_agent_would_continue_it(waiting: WaitingTurn) -> None:
    """It would not make the call, so the person reads that nothing was executed."""
    turn = await waiting.begin("fly ada")
    await waiting.set_agent(model="builtin:shell")
    waiting.agent = ShellAgent()
    ended = await waiting.decide(turn)
    assert (ended.state, waiting.configuration.flown) == (TurnState.FAILED, [])
    assert "changed from entry:one to builtin:shell while this turn waited" in (ended.error or "")


async def test_what_waits_ends_with_its_agent(waiting: WaitingTurn) -> None:
    """The turn fails with the reason at once, and so does the one behind it."""
    turn = await waiting.begin("fly ada")
    behind = await waiting.harness.add_turn("fly dove")
    await waiting.delete_agent()
    for one in (turn, behind):
        ended = await waiting.run(one, *FINAL)
        assert (ended.state, "agent ada no longer exists" in (ended.error or "")) == (TurnState.FAILED, True)
    assert await waiting.states(turn) == ["expired"]


@pytest.fixture
async def flying(waiting: WaitingTurn) -> WaitingTurn:
    """An agent that calls a tool twice, without approvals."""
    waiting.agent = to_agent("one", calls_twice)
    free = await add_sandbox_record(
        waiting.harness.database, waiting.harness.agent.account, name="free", permissionMode="bypass"
    )
    await waiting.set_agent(sandbox=free.id)
    return waiting


async def test_a_running_turn_has_changed_permissions_from_its_next_call_on(flying: WaitingTurn) -> None:
    """The second call is asked about, and the first is not repeated."""

    async def restrict() -> None:
        careful = await add_sandbox_record(
            flying.harness.database, flying.harness.agent.account, name="careful", permissionMode="ask"
        )
        await flying.set_agent(sandbox=careful.id)

    flying.configuration.on_flight = restrict
    turn = await flying.begin("ada")
    assert flying.configuration.flown == ["ada"]
    flying.configuration.on_flight = None
    ended = await flying.decide(turn)
    assert (ended.state, ended.output) == (TurnState.COMPLETED, "ada flies, owl flies")
    assert flying.configuration.flown == ["ada", "owl"]


async def test_a_running_turn_makes_no_call_after_its_agent_was_deleted(flying: WaitingTurn) -> None:
    """It fails with the reason before the next call."""
    flying.configuration.on_flight = flying.delete_agent
    ended = await flying.run(await flying.harness.add_turn("ada"), *FINAL)
    assert (ended.state, flying.configuration.flown) == (TurnState.FAILED, ["ada"])
    assert "agent ada no longer exists" in (ended.error or "")


async def test_another_change_does_not_begin_a_running_turn_again(flying: WaitingTurn) -> None:
    """Instructions do not decide what a call may do."""

    async def instruct() -> None:
        await flying.set_agent(instructions="Be brief.")

    flying.configuration.on_flight = instruct
    ended = await flying.run(await flying.harness.add_turn("ada"), *FINAL)
    assert (ended.state, ended.attempt) == (TurnState.COMPLETED, 1)
