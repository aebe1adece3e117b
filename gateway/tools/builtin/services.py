"""The service tool: named commands that are kept running in a reserved sandbox."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import commands_need_approval
from gateway.tools.builtin.bash import command_argument, command_objection
from gateway.tools.builtin.expose import DEFAULT_PORT, MAX_PORT, port_argument
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, fixed, str_argument
from sandbox import registry
from sandbox.lifecycle.services import (
    MAX_SERVICES,
    PORT_TIMEOUT_SECONDS,
    SERVICE_NAME,
    SandboxServices,
    ServiceStatus,
)
from sandbox.port import Feature

ACTIONS = ("start", "stop", "status", "logs")


_SPEC = ToolSpec(
    name="service",
    description=(
        "Keep a named command running in your sandbox, such as a web server. It is restarted when it "
        f"ends, outlives your turns, and its end is not reported. At most {MAX_SERVICES}. It is "
        "suspended with your idle sandbox and resumes with it, or starts again if the instance keeps no "
        f"processes. With a port (of a web server: {DEFAULT_PORT}) start waits up to "
        f"{PORT_TIMEOUT_SECONDS:g} s until a process listens there. For a command that ends use a "
        "background job."
    ),
    schema={
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": list(ACTIONS)},
            "name": {"type": "string", "pattern": f"^{SERVICE_NAME.pattern}$"},
            "command": {"type": "string", "description": "the bash script to keep running, for start"},
            "port": {"type": "integer", "minimum": 1, "maximum": MAX_PORT},
        },
        "required": ["action"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    action = str_argument(args, "action")
    if action not in ACTIONS:
        raise InvalidArguments(f"action must be one of {', '.join(ACTIONS)}, not {action!r}")
    port_argument(args)
    name = str_argument(args, "name", required=action != "status")
    if name and not SERVICE_NAME.fullmatch(name):
        raise InvalidArguments(f"name must be lower case letters, digits and -, at most 32, not {name!r}")
    sandbox, spec = await context.environment_resolver.sandbox(context.environment), context.environment.spec
    services = SandboxServices(sandbox=sandbox, sleeps_with_sandbox=spec.services_sleep_with_sandbox)
    return await _HANDLERS[action](context, services, name, args)


async def _start(
    _context: ToolContext, services: SandboxServices, name: str, args: Mapping[str, Any]
) -> ToolResult:
    status = await services.start(name, command_argument(args), port_argument(args) or 0)
    shape = to_response(status)
    up = status.state == "running" and (status.ready or not status.port)
    return ToolResult(ok=up, content=json.dumps(shape), detail=shape)


def _objection(context: ToolContext, args: Mapping[str, Any]) -> str | None:
    return command_objection(context, args) if args.get("action") == "start" else None


async def _stop(
    _context: ToolContext, services: SandboxServices, name: str, _args: Mapping[str, Any]
) -> ToolResult:
    if not await services.stop(name):
        return _unknown(name)
    return ToolResult(ok=True, content=f"{name} is stopped and deleted")


async def _status(
    _context: ToolContext, services: SandboxServices, name: str, _args: Mapping[str, Any]
) -> ToolResult:
    found = [one for one in await services.list_all() if name in ("", one.name)]
    if name and not found:
        return _unknown(name)
    return ToolResult(ok=True, content=json.dumps([to_response(one) for one in found]))


async def _logs(
    context: ToolContext, services: SandboxServices, name: str, _args: Mapping[str, Any]
) -> ToolResult:
    report = await services.logs(name)
    if report is None:
        return _unknown(name)
    limit = context.environment.config.output_limit
    shown = report.output[-limit:].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    shape = {"output": shown, "truncated": report.truncated or len(report.output) > limit}
    return ToolResult(ok=True, content=json.dumps(shape, ensure_ascii=False), detail=shape)


_HANDLERS: Mapping[
    str, Callable[[ToolContext, SandboxServices, str, Mapping[str, Any]], Awaitable[ToolResult]]
] = {
    "start": _start,
    "stop": _stop,
    "status": _status,
    "logs": _logs,
}


def to_response(status: ServiceStatus) -> dict[str, Any]:
    """Return a service's state in its public shape."""
    return {
        "name": status.name,
        "state": status.state,
        "ends": status.exits,
        "starts": status.run,
        **({"started_again_with_its_sandbox": True} if status.restarted else {}),
        **({"port": status.port, "ready": status.ready} if status.port else {}),
        **({"exit_code": status.exit_code} if status.exits else {}),
        **({"again_in_seconds": status.restart_in} if status.state == "waiting" else {}),
    }


def _unknown(name: str) -> ToolResult:
    return ToolResult(ok=False, content=f"there is no service {name!r} in this sandbox")


def _is_available(context: ToolContext) -> bool:
    config = context.environment.config
    keeps = {Feature.JOBS, Feature.PERSISTENT} <= registry.plugin(config.provider).features
    return keeps and config.persistent and not context.environment.files_only


service = Tool(
    spec=fixed(_SPEC),
    needs_approval=commands_need_approval,
    objection=_objection,
    run=_run,
    idempotent=True,
    is_available=_is_available,
)
