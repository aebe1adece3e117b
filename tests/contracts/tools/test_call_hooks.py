"""Hooks before and after tool calls and turns: of packages and over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from agent_tools import RecordingTools, agent_spec, collect_steps, turn_input
from delivery.database.engine import Database
from delivery.webhooks.signing import verify
from egress.policy import EgressPolicy
from gateway.agents.custom.installed_agents import to_agent
from gateway.agents.custom.turn import AgentTurn
from gateway.agents.port import AgentError, Delta, Finished, MessageCompleted, PendingToolCall
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records
from gateway.store.turns import turn_steps
from gateway.tools.executor import ToolExecutor
from gateway.tools.external.functions import function_tool, tool
from gateway.tools.external.hooked_tools import HookedTools
from gateway.tools.external_tools import no_external_tools
from gateway.tools.hooks.answer import Hook, HookAnswer, HookCall
from gateway.tools.hooks.functions import BrokenHook, FunctionHook, hook, load_hooks
from gateway.tools.hooks.turn_hooks import TurnHooks
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker

SECRET = "whsec_" + "c2VjcmV0" * 4
OTHER_SECRET = "whsec_" + "b3RoZXItc2VjcmV0LW9mLWhvb2tzLWluLXRlc3Rz"


@tool(approval="never")
async def fly(bird: str) -> str:
    """Let a bird fly."""
    return f"{bird} flies"


async def glide(bird: str) -> str:
    """Let a bird glide, if a person approves."""
    return f"{bird} glides"


@hook("before_tool", "after_tool")
async def rules(call: HookCall) -> HookAnswer | None:
    """Deny eagles, rename doves, and remark on the results."""
    bird = (call.args or {}).get("bird")
    if call.point == "after_tool":
        return HookAnswer(result=(call.result or "").upper()) if bird == "ada" else None
    if bird == "eagle":
        return HookAnswer(decision="deny", reason="eagles eat pigeons")
    if bird == "dove":
        return HookAnswer(args={"bird": "ada"}, note="doves are called ada here")
    return None


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


@asynccontextmanager
async def open_tools(
    harness: TurnWorkerHarness, *installed: Hook, allow: str = "127.0.0.0/8", turn: Any = None
) -> AsyncIterator[ToolExecutor]:
    """Open the tools of a turn with the hooks, and with the tool `fly`."""
    turn = turn or await harness.add_turn(running=True)
    records = Records(harness.vault, EgressPolicy.parse(allow))
    context = replace(await harness.tool_context(turn), agent=harness.agent)
    async with HookedTools(records, installed, no_external_tools).open(context) as external:
        yield ToolExecutor(
            context,
            begin=harness.transactions.begin,
            check=lambda: None,
            allowed=None,
            external={"fly": function_tool("fly", fly), "glide": function_tool("glide", glide)},
            hooks=external.hooks,
        )


async def test_a_function_denies_changes_and_annotates(harness: TurnWorkerHarness) -> None:
    """A denied call is recorded and not executed; a changed one is executed as changed."""
    turn = await harness.add_turn(running=True)
    async with open_tools(harness, FunctionHook("rules", rules), turn=turn) as tools:
        denied = await tools.call("fly", {"bird": "eagle"}, call="call-1")
        changed = await tools.call("fly", {"bird": "dove"}, call="call-2")
        plain = await tools.call("fly", {"bird": "carrier"}, call="call-3")
    assert (denied.ok, denied.content) == (False, "A rule denied this call: eagles eat pigeons")
    assert changed.content == "ADA FLIES\ndoves are called ada here"
    assert plain.content == "carrier flies"
    async with harness.database.read() as connection:
        steps = {one.step_key: one for one in await turn_steps.list_for_turn(connection, turn.id)}
    assert steps["call-2"].args == {"bird": "ada"}
    assert steps["call-1"].state == "done"


async def test_people_decide_about_the_changed_call(harness: TurnWorkerHarness) -> None:
    """The question shows the arguments that would be used; there is no question about a denied call."""
    sandbox = await add_sandbox_record(harness.database, harness.agent.account, permissionMode="ask")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    async with open_tools(harness, FunctionHook("rules", rules)) as tools:
        assert not await tools.needs_approval("glide", {"bird": "eagle"}, call="call-1")
        assert await tools.needs_approval("glide", {"bird": "dove"}, call="call-2")
        pending = PendingToolCall(id="call-2", name="glide", args={"bird": "dove"})
        (shown,) = tools.changed_calls([pending])
        assert shown.args == {"bird": "ada"}
        waiting = await tools.call("glide", {"bird": "dove"}, call="call-2")
        assert not waiting.ok


@hook("before_tool", timeout=0.1)
async def silent(_call: HookCall) -> None:
    """Never answer."""
    await asyncio.Event().wait()


@hook("before_tool")
async def broken(_call: HookCall) -> None:
    """Fail."""
    raise KeyError("a canary of an inner detail")


@hook("before_tool")
async def cancelled(_call: HookCall) -> None:
    """End as a function does that awaits a task that it cancelled."""
    raise asyncio.CancelledError


@hook("before_tool")
async def late(_call: HookCall) -> None:
    """Fail with a time-out of its own."""
    raise TimeoutError("a canary of an inner detail")


@hook("before_tool", on_failure="allow")
async def lenient(_call: HookCall) -> None:
    """Fail without consequences."""
    raise KeyError("no matter")


@pytest.mark.parametrize(
    ("function", "allowed", "logged"),
    [
        (silent, False, "no answer within 0.1 s"),
        (broken, False, "KeyError"),
        (cancelled, False, "UnrequestedCancellation"),
        (late, False, "TimeoutError"),
        (lenient, True, "KeyError"),
    ],
)
async def test_a_failure_denies_unless_declared(
    harness: TurnWorkerHarness, function: Any, *, allowed: bool, logged: str
) -> None:
    """A hook that fails or does not answer in time denies, without inner details; the log names its error.

    Its own TimeoutError and CancelledError are its errors, not the gateway's.
    """
    async with open_tools(harness, FunctionHook("one", function)) as tools:
        with capture_logs() as lines:
            result = await tools.call("fly", {"bird": "ada"}, call="call-1")
    (line,) = [one for one in lines if one["event"] == "hook.unanswered"]
    assert (line["hook"], line["error"]) == ("one", logged)
    assert result.ok is allowed
    assert "canary" not in result.content
    assert allowed or "'one' could not be asked" in result.content


@dataclass(kw_only=True)
class RuleServer:
    """A receiver on loopback that decides."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Check the signature, and decide by the bird."""
        content = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        verify([SECRET], headers, content, now=datetime.now(UTC))
        body = json.loads(content)
        self.bodies.append(body)
        bird = body.get("args", {}).get("bird")
        if bird == "eagle":
            return web.json_response({"decision": "deny", "reason": "not in this house"})
        if bird == "owl":
            return web.json_response({"decision": "perhaps"})
        if bird == "crow":
            return web.Response(status=500)
        return web.json_response({"args": {"bird": "ada"}}) if bird == "dove" else web.Response(status=204)


@pytest.fixture
async def rule_server() -> AsyncIterator[RuleServer]:
    """A running rule server."""
    server = RuleServer()
    app = web.Application()
    app.router.add_post("/rules", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/rules"
    yield server
    await runner.cleanup()


async def configure(harness: TurnWorkerHarness, allow: str = "127.0.0.0/8", **hooks: Any) -> None:
    """Give the agent's record these HTTP hooks."""
    records = Records(harness.vault, EgressPolicy.parse(allow))
    async with harness.database.begin() as connection:
        saved = await records.update(connection, harness.agent, patch={"hooks": {"http": hooks}})
    harness.agent = saved.record


async def test_a_server_decides(harness: TurnWorkerHarness, rule_server: RuleServer) -> None:
    """Requests are signed; statuses and answers that are not understood deny; the secret is encrypted."""
    await configure(harness, rules={"url": rule_server.url, "secret": SECRET, "tools": ["fl*"]})
    assert SECRET not in str(harness.agent.config)
    async with open_tools(harness) as tools:
        results = {
            bird: await tools.call("fly", {"bird": bird}, call=bird)
            for bird in ("eagle", "dove", "ada", "owl", "crow")
        }
        other = await tools.call("memory_search", {"query": "x"}, call="call-9")
    assert results["eagle"].content == "A rule denied this call: not in this house"
    assert results["dove"].content == "ada flies"
    assert results["ada"].ok
    assert [results[one].ok for one in ("owl", "crow")] == [False, False]
    assert "denied" not in other.content
    assert {one["point"] for one in rule_server.bodies} == {"before_tool"}
    assert len(rule_server.bodies) == 5
    assert {one["tool"] for one in rule_server.bodies} == {"fly"}


async def test_a_question_has_the_present_secret(harness: TurnWorkerHarness, rule_server: RuleServer) -> None:
    """A turn goes on while the secret is replaced, and does not ask a hook that was removed."""
    rules = {"url": rule_server.url, "secret": OTHER_SECRET, "points": ["after_tool"]}
    await configure(harness, rules=rules)
    async with open_tools(harness) as tools:
        await configure(harness, rules={"secret": SECRET})
        assert (await tools.call("fly", {"bird": "ada"}, call="call-1")).content == "ada flies"
        assert len(rule_server.bodies) == 1
        await configure(harness, rules=None)
        assert (await tools.call("fly", {"bird": "eagle"}, call="call-2")).content == "eagle flies"
    assert len(rule_server.bodies) == 1


async def test_a_refused_address_denies(harness: TurnWorkerHarness, rule_server: RuleServer) -> None:
    """The guard holds when the record is saved, and when the server is asked."""
    await configure(harness, rules={"url": rule_server.url, "secret": SECRET})
    async with open_tools(harness, allow="") as tools:
        result = await tools.call("fly", {"bird": "ada"}, call="call-1")
    assert not result.ok
    assert rule_server.bodies == []
    with pytest.raises(InvalidRecord) as refused:
        await configure(harness, allow="", rules={"url": "http://127.0.0.1:9/", "secret": SECRET})
    assert [one.pointer for one in refused.value.problems] == ["/config/hooks/http/rules/url"]


async def echo(turn: AgentTurn) -> str:
    """Answer with the input."""
    await turn.message("one moment")
    return turn.input


@hook("before_turn", "after_turn")
async def about_turns(call: HookCall) -> HookAnswer | None:
    """Deny curses, replace a name, and close the answer."""
    if call.point == "before_turn":
        if call.input == "curse":
            return HookAnswer(decision="deny", reason="mind your words")
        return HookAnswer(input=(call.input or "").replace("Ada", "[name]"))
    if call.output == "secret":
        return HookAnswer(decision="deny", reason="the answer was withheld")
    return HookAnswer(note="(checked)")


async def test_turns_are_decided_about(harness: TurnWorkerHarness) -> None:
    """The input is changed before the agent has it; the answer is changed or withheld before it is sent."""
    hooks = TurnHooks(turn=await harness.add_turn(running=True), hooks=[FunctionHook("turns", about_turns)])
    agent, spec = hooks.wrap(to_agent("one", echo)), agent_spec(models=("entry:one",))
    steps = await collect_steps(agent, turn_input(spec, "Ada asks"), RecordingTools())
    said = [one.text for one in steps if isinstance(one, MessageCompleted | Delta)]
    assert said == ["one moment", "[name] asks\n\n(checked)"]
    end = steps[-1]
    assert isinstance(end, Finished)
    assert end.output == said[-1]
    for text, reported in [("curse", "mind your words"), ("secret", "withheld")]:
        with pytest.raises(AgentError, match=reported):
            await collect_steps(agent, turn_input(spec, text), RecordingTools())


async def _two(call: HookCall, other: str) -> None:
    """Take too much."""


def test_a_broken_hook_is_named() -> None:
    """A module that is missing, and what is not a function of one parameter, are named."""
    for value, reported in [
        ("no_such_module:rules", "no_such_module"),
        (f"{__name__}:_two", "one parameter"),
    ]:
        with pytest.raises(BrokenHook, match=reported):
            load_hooks([EntryPoint(name="one", value=value, group="dovecote.hooks")])
    with pytest.raises(BrokenHook, match="hook points are"):
        hook("before_lunch")  # type: ignore[arg-type]
    (found,) = load_hooks([EntryPoint(name="one", value=f"{__name__}:rules", group="dovecote.hooks")])
    assert found.points == {"before_tool", "after_tool"}
