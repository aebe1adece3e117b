"""Typed async functions of installed packages as tools of an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from delivery.database.engine import Database
from gateway.agents.port import PendingToolCall
from gateway.store.turns import turn_steps
from gateway.tools.executor import ToolExecutor
from gateway.tools.external.functions import BrokenTool, CallInfo, function_tool, tool
from gateway.tools.external.installed_tools import InstalledTools, load_tools
from gateway.tools.external_tools import no_external_tools
from gateway.tools.tool import Tool
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker


@tool(approval="never", timeout=0.5)
async def roost(places: int, birds: list[str], info: CallInfo, *, mode: str = "quiet") -> dict[str, Any]:
    """Give birds their places."""
    if mode == "silent":
        await asyncio.Event().wait()
    if len(birds) > places:
        raise ValueError("there are more birds than places")
    if mode == "broken":
        raise KeyError("a canary of an inner detail")
    if mode == "cancelled":
        raise asyncio.CancelledError
    if mode == "late":
        raise TimeoutError("a canary of an inner detail")
    return {"birds": birds, "mode": mode, "turn": info.turn, "key": info.key}


async def asking(name: str) -> str:
    """Say a name."""
    return name


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


async def _tools(harness: TurnWorkerHarness, installed: dict[str, Tool], turn: Any = None) -> ToolExecutor:
    turn = turn or await harness.add_turn(running=True)
    context = replace(await harness.tool_context(turn), agent=harness.agent)
    async with InstalledTools(installed, no_external_tools).open(context) as external:
        return ToolExecutor(
            context,
            begin=harness.transactions.begin,
            check=lambda: None,
            allowed=None,
            external=external.tools,
        )


async def test_a_function_is_described_called_and_recorded(harness: TurnWorkerHarness) -> None:
    """The model sees its parameters without the gateway's own; the call is a step of the turn."""
    turn = await harness.add_turn(running=True)
    tools = await _tools(harness, {"roost": function_tool("roost", roost)}, turn)
    (spec,) = [one for one in tools.list() if one.name == "roost"]
    assert spec.description == "Give birds their places."
    assert set(spec.schema["properties"]) == {"places", "birds", "mode"}
    assert spec.schema["required"] == ["places", "birds"]
    result = await tools.call("roost", {"places": 2, "birds": ["ada"]}, call="call-1")
    assert result.ok
    assert f'"turn": "{turn.id}"' in result.content
    async with harness.database.read() as connection:
        assert [one.tool for one in await turn_steps.list_for_turn(connection, turn.id)] == ["roost"]


@pytest.mark.parametrize(
    ("args", "reported"),
    [
        ({"places": 1}, "birds: Field required"),
        ({"places": "many", "birds": []}, "places"),
        ({"places": 1, "birds": [], "info": {}}, "info"),
        ({"places": 0, "birds": ["ada"]}, "more birds than places"),
        ({"places": 1, "birds": [], "mode": "silent"}, "longer than 0.5 s"),
        ({"places": 1, "birds": [], "mode": "broken"}, "the tool failed"),
        ({"places": 1, "birds": [], "mode": "cancelled"}, "the tool failed"),
        ({"places": 1, "birds": [], "mode": "late"}, "the tool failed"),
    ],
)
async def test_failures_are_results(harness: TurnWorkerHarness, args: dict[str, Any], reported: str) -> None:
    """Wrong arguments, a ValueError and the time limit are explained; other errors show no details."""
    tools = await _tools(harness, {"roost": function_tool("roost", roost)})
    result = await tools.call("roost", args, call="call-1")
    assert not result.ok
    assert reported in result.content
    assert "canary" not in result.content


async def test_a_tool_may_have_a_workspace_of_its_own(harness: TurnWorkerHarness) -> None:
    """`workspace` names one of several for tools that work in one; for others it is an argument."""

    @tool(approval="never")
    async def file_under(workspace: str) -> str:
        """File a letter where it belongs."""
        return f"filed under {workspace}"

    turn = await harness.add_turn(running=True)
    context = await harness.tool_context(turn)
    context = replace(context, environments={"a": context.environment, "b": context.environment})
    async with InstalledTools({"file": function_tool("file", file_under)}, no_external_tools).open(
        replace(context, agent=harness.agent)
    ) as external:
        tools = ToolExecutor(
            context,
            begin=harness.transactions.begin,
            check=lambda: None,
            allowed=None,
            external=external.tools,
        )
        assert tools.can_run(PendingToolCall(id="call-1", name="file", args={"workspace": "letters"}))
        for number, name in enumerate(("letters", "a")):
            result = await tools.call("file", {"workspace": name}, call=f"call-{number}")
            assert (result.ok, result.content) == (True, f"filed under {name}")


async def test_the_sandbox_mode_and_the_agents_list_apply(harness: TurnWorkerHarness) -> None:
    """A function without rules needs an approval where commands do; the agent's `tools` can leave it out."""
    sandbox = await add_sandbox_record(harness.database, harness.agent.account, permissionMode="ask")
    installed = {"asking": function_tool("asking", asking)}
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    tools = await _tools(harness, installed)
    assert await tools.needs_approval("asking", {"name": "ada"}, call="call-1")
    assert not (await tools.call("asking", {"name": "ada"}, call="call-1")).ok
    harness.agent = replace(harness.agent, config={**harness.agent.config, "tools": ["bash"]})
    assert "asking" not in {one.name for one in (await _tools(harness, installed)).list()}


async def untyped(name) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Say a name."""
    return str(name)


def blocking(name: str) -> str:
    """Say a name."""
    return name


async def collecting(*names: str) -> str:
    """Say names."""
    return " ".join(names)


def _undocumented() -> object:
    async def function(name: str) -> str:
        return name

    return function


@pytest.mark.parametrize("function", [untyped, _undocumented(), blocking, collecting, "text"])
def test_a_function_that_cannot_be_described_is_refused(function: object) -> None:
    """The error names the tool."""
    with pytest.raises(BrokenTool, match="'one'"):
        function_tool("one", function)


def test_a_name_is_used_once() -> None:
    """Neither a built-in tool nor another package's is replaced; a package that does not load is named."""
    entry = EntryPoint(name="flight", value=f"{__name__}:asking", group="dovecote.tools")
    with pytest.raises(BrokenTool, match="built-in"):
        load_tools([entry], reserved={"flight"})
    missing = EntryPoint(name="flight", value="no_such_module:asking", group="dovecote.tools")
    with pytest.raises(BrokenTool, match="no_such_module"):
        load_tools([missing], reserved=())
    with pytest.raises(BrokenTool, match="a name has letters"):
        function_tool("two words", asking)
