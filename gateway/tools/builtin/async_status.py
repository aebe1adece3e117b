"""The async_status tool: how a background job is doing, its logs, and stopping it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.store.turns.jobs import Job
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, can_start_jobs, fixed, str_argument

ACTIONS = ("", "logs", "stop")


_SPEC = ToolSpec(
    name="async_status",
    description=(
        "Get a background job of this conversation by its resultId: its state and output so far; "
        "action 'stop' ends it. You receive the result of a job without asking."
    ),
    schema={
        "type": "object",
        "properties": {
            "resultId": {"type": "string"},
            "action": {"type": "string", "enum": ["logs", "stop"]},
        },
        "required": ["resultId"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    action = str_argument(args, "action", required=False)
    if action not in ACTIONS:
        raise InvalidArguments(f"action must be logs or stop, not {action!r}")
    job = await context.jobs.get(context.turn, str_argument(args, "resultId"))
    if job is None:
        return ToolResult(ok=False, content=f"there is no job {args['resultId']!r} in this conversation")
    if action == "stop":
        await context.jobs.stop(job)
    job, output, truncated = await context.jobs.refresh(job)
    shape = to_response(job, output, truncated=truncated, limit=context.environment.config.output_limit)
    return ToolResult(ok=True, content=json.dumps(shape, ensure_ascii=False), detail=shape)


def to_response(job: Job, output: bytes, *, truncated: bool, limit: int) -> dict[str, Any]:
    """Return a job in its public shape, with the last `limit` bytes of its output."""
    shape: dict[str, Any] = {
        "resultId": job.id,
        "state": str(job.state),
        "command": job.command,
        "exit_code": job.exit_code,
        "output": output[-limit:].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}"),
        "truncated": truncated or len(output) > limit,
    }
    return shape | ({"reason": job.reason} if job.reason else {})


def _is_available(context: ToolContext) -> bool:
    return context.makes_job_calls or any(
        can_start_jobs(one) for one in (context.environment, *context.environments.values())
    )


async_status = Tool(
    spec=fixed(_SPEC),
    needs_approval=lambda _config: False,
    run=_run,
    idempotent=True,
    is_available=_is_available,
    uses_workspace=False,
)
