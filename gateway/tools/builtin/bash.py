"""The bash tool: a command in the sandbox, now or as a background job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import structlog

from gateway.agents.port import ToolResult, ToolSpec
from gateway.jobs.jobs import TooManyJobs
from gateway.records.tools.http_requests import BashToolConfig
from gateway.tools.approval_rules import commands_need_approval
from gateway.tools.tool import (
    InvalidArguments,
    Tool,
    ToolContext,
    bool_argument,
    can_start_jobs,
    str_argument,
)
from sandbox.config import DECLARED
from sandbox.errors import FilesNotStored
from sandbox.exec.command_lint import missing_runtime, path_outside_workspace
from sandbox.model import ExecRequest, ExecResult
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

MAX_COMMAND_BYTES = 64 * 1024
"""Bytes of one command."""

EXIT_NOT_FOUND = 127
"""How bash ends when there is no such program."""

ONE_STREAM = "exec 2>&1; "
"""Begins a command whose output and errors are read in the order in which they were written."""

NO_JOBS = (
    "a background job cannot run on {provider}: run the command without background, in at most {timeout} s"
)

_COMMAND_NOT_FOUND = re.compile(r"(?<![\w.+-])([\w.+-]++): command not found")
_RUNTIMES = {
    **dict.fromkeys(("python", "python3", "pip", "pip3"), "python3"),
    **dict.fromkeys(("node", "npm", "npx"), "node"),
    **dict.fromkeys(("uv", "uvx"), "uv"),
    "git": "git",
}
"""The contract's runtimes, by the programs that come with them."""


def _spec(context: ToolContext) -> ToolSpec:
    config = context.environment.config
    absent = [
        one for one in context.environment.missing_runtimes if one not in DECLARED or one in config.runtimes
    ]
    missing = f" ({', '.join(absent)} not installed here)" if absent else ""
    network = "no network" if config.network.mode == "deny-all" else f"network: {config.network.mode}"
    jobs, properties = "", {"command": {"type": "string", "description": "the bash script to run"}}
    if is_marked_async(context):
        jobs = " Each command is a background job: you get its resultId at once and its result later."
    elif any(can_start_jobs(one) for one in (context.environment, *context.environments.values())):
        jobs = " With background=true it runs on as a job: you get its resultId at once and its result later."
        properties["background"] = {"type": "boolean", "description": "run on as a background job"}
    return ToolSpec(
        name="bash",
        description=(
            "Run a bash command in your sandbox; it starts in the workspace. "
            f"Runtimes: {', '.join(config.runtimes)}{missing}; {network}; time-out {config.timeout} s.{jobs}"
        ),
        schema={
            "type": "object",
            "properties": properties,
            "required": ["command"],
            "additionalProperties": False,
        },
    )


def is_marked_async(context: ToolContext) -> bool:
    """Return whether the agent's record makes every command a background job."""
    tools = context.agent.config.get("tools") if context.agent is not None else None
    return isinstance(tools, Mapping) and BashToolConfig.model_validate(tools.get("bash", {})).is_async


async def _run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
    command = command_argument(args)
    if bool_argument(args, "background") or is_marked_async(context):
        return await start_job(context, command, key)
    sandbox = await context.environment_resolver.sandbox(context.environment)
    config = context.environment.config
    request = ExecRequest(
        script=ONE_STREAM + command,
        timeout=float(config.timeout),
        output_limit=config.output_limit,
        on_output=context.on_output,
    )
    result, not_stored = await _run_and_store(sandbox, request)
    shape = to_response(result) | missing_runtime_note(result) | not_stored
    return ToolResult(ok=result.ok, content=to_text(shape, timeout=config.timeout), detail=shape)


async def _run_and_store(sandbox: Sandbox, request: ExecRequest) -> tuple[ExecResult, dict[str, str]]:
    """Run a script; return a note too if the workspace store does not take the files it changed."""
    try:
        return await sandbox.run(request), {}
    except FilesNotStored as error:
        if not isinstance(error.done, ExecResult):
            raise
        log.warning("bash.files_not_stored", error=str(error))
        return error.done, {"note": str(error)}


def to_text(shape: Mapping[str, Any], *, timeout: int) -> str:
    """Return a result as text for the model: the output as it was written, then what is to be said of it."""
    notes = []
    if shape["timed_out"]:
        notes.append(f"timed out after {timeout} s")
    elif shape["exit_code"] != 0:
        notes.append(f"exit code {shape['exit_code']}")
    notes += [shape["note"]] if "note" in shape else []
    output = "\n".join(part.rstrip("\n") for part in (shape["stdout"], shape["stderr"]) if part)
    return "\n".join([*([output] if output else []), *(f"[{note}]" for note in notes)]) or "[no output]"


def command_argument(args: Mapping[str, Any]) -> str:
    """Return the script of a call; raises InvalidArguments for one that cannot be run."""
    return check_command(str_argument(args, "command"))


def check_command(command: str) -> str:
    """Return a script; raises InvalidArguments when it is too long, or has a NUL, which bash cannot read."""
    if "\0" in command:
        raise InvalidArguments("the command contains a NUL, which bash cannot read; `printf '\\0'` makes one")
    if len(command.encode("utf-8", "surrogatepass")) > MAX_COMMAND_BYTES:
        raise InvalidArguments(
            f"the command is longer than {MAX_COMMAND_BYTES} bytes; write a script file and run that"
        )
    return command


def command_objection(context: ToolContext, args: Mapping[str, Any]) -> str | None:
    """Return why a command obviously cannot work here, or None."""
    command = command_argument(args)
    advice = missing_runtime(command, context.environment.config.runtimes)
    if advice is None and context.environment.workspace is not None:
        advice = path_outside_workspace(command)
    return advice


async def start_job(context: ToolContext, command: str, key: str) -> ToolResult:
    """Start a command as a background job, once per call; a sandbox that can run none is a refusal."""
    if not can_start_jobs(context.environment):
        where, longest = context.environment.provider, context.environment.config.timeout
        return ToolResult(ok=False, content=NO_JOBS.format(provider=where, timeout=longest))
    try:
        job = await context.jobs.start(context.turn, context.environment, command, job_id=key)
    except TooManyJobs as error:
        return ToolResult(ok=False, content=str(error))
    shape = {"resultId": job.id, "state": str(job.state)}
    return ToolResult(ok=True, content=json.dumps(shape), detail=shape)


def to_response(result: ExecResult) -> dict[str, Any]:
    """Return a result in its public shape; text that is not UTF-8 is shown with replacement characters."""
    return {
        "ok": result.ok,
        "runtime": result.runtime,
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "duration_ms": result.duration_ms,
        "stdout": _decode(result.stdout, truncated=result.stdout_truncated),
        "stderr": _decode(result.stderr, truncated=result.stderr_truncated),
        **({"truncated": True} if result.stdout_truncated or result.stderr_truncated else {}),
    }


def missing_runtime_note(result: ExecResult) -> dict[str, str]:
    """Return a note about a missing runtime when a command ended for that reason; empty otherwise."""
    if result.exit_code != EXIT_NOT_FOUND:
        return {}
    output = (result.stdout + result.stderr).decode("utf-8", "replace")
    missed = set(_COMMAND_NOT_FOUND.findall(output)) & _RUNTIMES.keys()
    names = sorted({_RUNTIMES[program] for program in missed})
    return {"note": f"not installed in this sandbox: {', '.join(names)}"} if names else {}


def _decode(raw: bytes, *, truncated: bool) -> str:
    shown = raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return f"{shown}\n[output truncated]" if truncated else shown


bash = Tool(
    spec=_spec,
    needs_approval=commands_need_approval,
    objection=command_objection,
    run=_run,
    idempotent=False,
    is_available=lambda context: not context.environment.files_only,
)
