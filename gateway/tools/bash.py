"""The bash tool: a command in the sandbox, now or as a background job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.jobs.jobs import TooManyJobs
from gateway.tools.tool import Desk, Tool, flag, text
from sandbox.exec.command_lint import outside, refusal
from sandbox.model import Command, Result

COMMAND_LIMIT = 64 * 1024
"""Bytes of one command."""

NOT_FOUND = 127
"""How bash ends when there is no such program."""

_MISSED = re.compile(r"([\w.+-]+): command not found")
_RUNTIMES = {
    **dict.fromkeys(("python", "python3", "pip", "pip3"), "python3"),
    **dict.fromkeys(("node", "npm", "npx"), "node"),
    **dict.fromkeys(("uv", "uvx"), "uv"),
}
"""The contract's runtimes, by the programs that come with them."""


def _spec(desk: Desk) -> ToolSpec:
    config = desk.bench.config
    missing = f" ({', '.join(desk.bench.lacks)} not installed here)" if desk.bench.lacks else ""
    network = "no network" if config.network.mode == "deny-all" else f"network: {config.network.mode}"
    return ToolSpec(
        name="bash",
        description=(
            "Run a bash command in your sandbox; it starts in the workspace. "
            f"Runtimes: {', '.join(config.runtimes)}{missing}; {network}; time-out {config.timeout} s. "
            "With background=true it runs on as a job: you get its resultId at once and its result later."
        ),
        schema={
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "the bash script to run"},
                "background": {"type": "boolean", "description": "run on as a background job"},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], key: str) -> ToolResult:
    command = text(args, "command")
    against = refused(desk, command)
    if against:
        return ToolResult(ok=False, content=against)
    if flag(args, "background"):
        return await _in_background(desk, command, key)
    sandbox = await desk.workbench.sandbox(desk.bench)
    config = desk.bench.config
    result = await sandbox.run(
        Command(script=command, timeout=float(config.timeout), output_limit=config.output_limit)
    )
    shape = shape_of(result) | noted(result)
    return ToolResult(ok=result.ok, content=json.dumps(shape, ensure_ascii=False), detail=shape)


def refused(desk: Desk, command: str) -> str | None:
    """Return the reason against a command that could not do what it is for, None for any other."""
    if len(command.encode("utf-8", "surrogatepass")) > COMMAND_LIMIT:
        return f"the command is longer than {COMMAND_LIMIT} bytes; write a script file and run that"
    advice = refusal(command, desk.bench.config.runtimes)
    if advice is None and desk.bench.workspace is not None:
        advice = outside(command)
    return advice


async def _in_background(desk: Desk, command: str, key: str) -> ToolResult:
    try:
        job = await desk.jobs.start(desk.turn, desk.bench, command, job_id=key)
    except TooManyJobs as error:
        return ToolResult(ok=False, content=str(error))
    shape = {"resultId": job.id, "state": str(job.state)}
    return ToolResult(ok=True, content=json.dumps(shape), detail=shape)


def shape_of(result: Result) -> dict[str, Any]:
    """Return a result in its public shape; text that is not UTF-8 is shown with replacement characters."""
    return {
        "ok": result.ok,
        "runtime": result.runtime,
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "duration_ms": result.duration_ms,
        "stdout": _decoded(result.stdout, cut=result.stdout_truncated),
        "stderr": _decoded(result.stderr, cut=result.stderr_truncated),
        **({"truncated": True} if result.stdout_truncated or result.stderr_truncated else {}),
    }


def noted(result: Result) -> dict[str, str]:
    """Return what is to be said of a command that ended for want of a runtime; nothing of any other."""
    if result.exit_code != NOT_FOUND:
        return {}
    missed = set(_MISSED.findall(result.stderr.decode("utf-8", "replace"))) & _RUNTIMES.keys()
    names = sorted({_RUNTIMES[program] for program in missed})
    return {"note": f"not installed in this sandbox: {', '.join(names)}"} if names else {}


def _decoded(raw: bytes, *, cut: bool) -> str:
    shown = raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return f"{shown}\n[output truncated]" if cut else shown


bash = Tool(
    spec=_spec,
    asks=lambda config: config.permission_mode in {"ask", "edit"},
    act=_act,
    repeatable=False,
    fits=lambda desk: not desk.bench.files_only,
)
