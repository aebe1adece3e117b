"""The tools of one turn: checkpointed, asked for where the sandbox's permission mode says so, told of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import structlog

from delivery.deliveries.transactions import Entry
from delivery.events.event import Event, Kind
from gateway.agents.port import ToolResult, Tools, ToolSpec
from gateway.conversations.approvals import digest_of, mark_of_all
from gateway.conversations.approver_rules import may_approve_own
from gateway.store.turns import approvals, turns
from gateway.store.turns.turns import StepRow
from gateway.tools.async_status import async_status
from gateway.tools.bash import bash
from gateway.tools.deliver_file import deliver_file
from gateway.tools.edit import edit
from gateway.tools.expose import expose
from gateway.tools.glob import glob
from gateway.tools.grep import grep
from gateway.tools.list_files import list_files
from gateway.tools.load_skill import load_skill
from gateway.tools.read import read
from gateway.tools.services import service
from gateway.tools.tool import SEVERAL, BadArguments, Desk, Tool
from gateway.tools.write import write
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

INSTALLED: Mapping[str, Tool] = {
    "bash": bash,
    "read": read,
    "write": write,
    "edit": edit,
    "glob": glob,
    "grep": grep,
    "list_files": list_files,
    "load_skill": load_skill,
    "async_status": async_status,
    "deliver_file": deliver_file,
    "expose": expose,
    "service": service,
}

TOLD_LIMIT = 128 * 1024
"""Characters of output an event carries; the whole stands in the turn's log."""

Write = Callable[[str], AbstractAsyncContextManager[Entry]]
"""Open a ledger entry that fails unless this attempt still holds the conversation."""


class TurnTools(Tools):
    """The door between an agent and the sandbox, for one attempt at one turn."""

    def __init__(
        self, desk: Desk, *, write: Write, check: Callable[[], None], allowed: Sequence[str] | None
    ) -> None:
        self._desk = desk
        self._approves_own: bool | None = None
        self._write = write
        self._check = check
        self._tools = {
            name: tool
            for name, tool in INSTALLED.items()
            if (allowed is None or name in allowed) and any(tool.fits(place) for place in _places(desk))
        }

    def offered(self) -> Sequence[ToolSpec]:
        """Return the tools of this turn."""
        return [_placed(tool.spec(self._desk), tool, self._desk) for tool in self._tools.values()]

    async def asks(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> bool:
        """Say whether a person must approve this call first (and has not yet)."""
        tool = self._tools.get(name)
        if tool is None or not self._is_careful(tool, args):
            return False
        if typed_by_asker and await self._typing_approves():
            return False
        return await self._earlier(call) is None and not await self._approved(name, args, call)

    def _is_careful(self, tool: Tool, args: Mapping[str, Any]) -> bool:
        """Say whether the permission mode where a call works wants a person asked for it."""
        try:
            bench = self._desk.at(args).bench
        except BadArguments:
            return False  # it is refused for that
        return tool.asks(bench.config) and not (tool.changes_files and bench.spec.read_only)

    async def _typing_approves(self) -> bool:
        """Say whether who asked for the turn may approve its commands, by typing them."""
        if self._approves_own is None:
            async with self._desk.jobs.reading() as connection:
                self._approves_own = await may_approve_own(connection, self._desk.turn)
        return self._approves_own

    async def _approved(self, name: str, args: Mapping[str, Any], call: str) -> bool:
        async with self._desk.jobs.reading() as connection:
            found = await approvals.of_turn(connection, self._desk.turn.id)
        digest = digest_of(name, args, mark_of_all(self._desk.benches, self._desk.bench))
        return any(one.call == call and one.digest == digest and one.state == "approved" for one in found)

    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Carry a call out, once: a call already carried out returns what it came to then."""
        tool = self._tools.get(name)
        if tool is None:
            return ToolResult(
                ok=False, content=f"there is no tool {name!r}; there are {', '.join(self._tools)}"
            )
        if await self.asks(name, args, call=call, typed_by_asker=typed_by_asker):
            return ToolResult(ok=False, content="a person must approve this call first")
        earlier = await self._earlier(call)
        if earlier is not None and earlier.state == "done":
            return _recorded(earlier)
        if earlier is not None and not tool.repeatable and not args.get("background"):
            return await self._finish(call, name, _interrupted(args))
        if earlier is None:
            await self._begin(call, name, args)
        return await self._finish(call, name, await self._act(tool, args, call))

    async def _earlier(self, call: str) -> StepRow | None:
        if self._desk.turn.attempt <= 1 and self._desk.turn.paused is None:
            return None
        async with self._desk.jobs.reading() as connection:
            return await turns.step(connection, self._desk.turn.id, call)

    async def _begin(self, call: str, name: str, args: Mapping[str, Any]) -> None:
        turn = self._desk.turn
        async with self._write("step.begin") as entry:
            await turns.begin_step(entry.connection, turn.id, call, tool=name, args=args)
            entry.tell(
                Event.now(
                    Kind.TOOL_CALLED,
                    turn.conversation,
                    {"name": name, "args": dict(args), "call": call, "attempt": turn.attempt},
                    turn=turn.id,
                )
            )

    async def _act(self, tool: Tool, args: Mapping[str, Any], call: str) -> ToolResult:
        self._check()
        try:
            desk = self._desk.at(args)
            if not tool.fits(desk):
                return ToolResult(ok=False, content="this tool is not offered in that workspace")
            if desk.bundles is not None and desk.agent is not None:
                await desk.bundles.stage(desk.agent, desk.bench)
            return await tool.act(desk, _without_place(args, desk), _key_of(desk.turn.id, call))
        except BadArguments as error:
            return ToolResult(ok=False, content=f"wrong arguments: {error}")
        except SandboxError as error:
            log.warning("tool.sandbox_failed", turn=self._desk.turn.id, error=str(error))
            return ToolResult(ok=False, content=f"the sandbox could not be used: {error}")

    async def _finish(self, call: str, name: str, result: ToolResult) -> ToolResult:
        turn = self._desk.turn
        recorded = {"ok": result.ok, "content": result.content, "detail": dict(result.detail)}
        async with self._write("step.end") as entry:
            await turns.end_step(entry.connection, turn.id, call, recorded)
            entry.tell(
                Event.now(
                    Kind.TOOL_COMPLETED,
                    turn.conversation,
                    {"name": name, "call": call, "attempt": turn.attempt, **_told(result)},
                    turn=turn.id,
                )
            )
        return result


def _places(desk: Desk) -> Iterator[Desk]:
    """Yield the desk with each of its benches."""
    for bench in desk.benches.values() or (desk.bench,):
        yield replace(desk, bench=bench)


def _placed(spec: ToolSpec, tool: Tool, desk: Desk) -> ToolSpec:
    """Return what a model is told of a tool: where there are several workspaces, it names one."""
    names = [name for name, bench in desk.benches.items() if tool.fits(replace(desk, bench=bench))]
    if len(desk.benches) < SEVERAL or not tool.has_a_place:
        return spec
    about = {"type": "string", "enum": names, "description": f"which workspace; {names[0]} if left out"}
    return replace(
        spec, schema={**spec.schema, "properties": {**spec.schema["properties"], "workspace": about}}
    )


def _without_place(args: Mapping[str, Any], desk: Desk) -> Mapping[str, Any]:
    several = len(desk.benches) >= SEVERAL
    return {name: value for name, value in args.items() if not (several and name == "workspace")}


def _told(result: ToolResult) -> dict[str, Any]:
    detail = result.detail
    output = detail.get("stdout", "") + detail.get("stderr", "") if "stdout" in detail else result.content
    return {
        "ok": result.ok,
        "exit_code": detail.get("exit_code"),
        "duration_ms": detail.get("duration_ms"),
        "timed_out": bool(detail.get("timed_out", False)),
        "output": output[:TOLD_LIMIT],
        "truncated": bool(detail.get("truncated", False)) or len(output) > TOLD_LIMIT,
        **({"resultId": detail["resultId"]} if "resultId" in detail else {}),
    }


def _recorded(step: StepRow) -> ToolResult:
    result = step.result or {}
    return ToolResult(ok=result["ok"], content=result["content"], detail=result["detail"])


def _interrupted(args: Mapping[str, Any]) -> ToolResult:
    what = str(args.get("command") or json.dumps(dict(args)))
    return ToolResult(
        ok=False,
        content=(
            f"The gateway was restarted while this ran, so it may have run in part or whole: {what}\n"
            "Look at what it left before running it again."
        ),
        detail={"interrupted": True, "command": what},
    )


def _key_of(turn: str, call: str) -> str:
    return "job_" + hashlib.sha256(f"{turn}\n{call}".encode()).hexdigest()[:26]
