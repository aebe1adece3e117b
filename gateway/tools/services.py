"""The tool for services: named commands that are kept running in a reserved sandbox."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.bash import refused
from gateway.tools.expose import MOST_PORT, USUAL_PORT, port_of
from gateway.tools.tool import BadArguments, Desk, Tool, text
from sandbox import registry
from sandbox.lifecycle.services import MOST, NAME, PATIENCE, Services, Standing
from sandbox.port import Feature

ACTIONS = ("start", "stop", "status", "logs")


def _spec(_desk: Desk) -> ToolSpec:
    return ToolSpec(
        name="service",
        description=(
            "Keep a named command running in your sandbox, such as a web server: it is started again when it "
            f"ends, outlives your turns, and nobody is told of its end. At most {MOST}. It sleeps with your "
            "idle sandbox and goes on when that is used again, from its beginning where the machine keeps no "
            f"processes. With a port (of a web server: {USUAL_PORT}) start waits up to {PATIENCE:g} s until "
            "something listens there. What is to come to an end is a background job."
        ),
        schema={
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": list(ACTIONS)},
                "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
                "command": {"type": "string", "description": "the bash script to keep running, for start"},
                "port": {"type": "integer", "minimum": 1, "maximum": MOST_PORT},
            },
            "required": ["action"],
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], _key: str) -> ToolResult:
    action = text(args, "action")
    if action not in ACTIONS:
        raise BadArguments(f"action must be one of {', '.join(ACTIONS)}, not {action!r}")
    port_of(args)
    name = text(args, "name", needed=action != "status")
    if name and not NAME.fullmatch(name):
        raise BadArguments(f"name must be small letters, digits and -, at most 32, not {name!r}")
    sandbox, spec = await desk.workbench.sandbox(desk.bench), desk.bench.spec
    services = Services(sandbox=sandbox, rest=spec.services_rest)
    return await _WAYS[action](desk, services, name, args)


async def _start(desk: Desk, services: Services, name: str, args: Mapping[str, Any]) -> ToolResult:
    command = text(args, "command")
    against = refused(desk, command)
    if against:
        return ToolResult(ok=False, content=against)
    standing = await services.start(name, command, port_of(args) or 0)
    shape = shape_of(standing)
    up = standing.state == "running" and (standing.ready or not standing.port)
    return ToolResult(ok=up, content=json.dumps(shape), detail=shape)


async def _stop(_desk: Desk, services: Services, name: str, _args: Mapping[str, Any]) -> ToolResult:
    if not await services.stop(name):
        return _unknown(name)
    return ToolResult(ok=True, content=f"{name} is stopped and forgotten")


async def _status(_desk: Desk, services: Services, name: str, _args: Mapping[str, Any]) -> ToolResult:
    every = [one for one in await services.every() if name in ("", one.name)]
    if name and not every:
        return _unknown(name)
    return ToolResult(ok=True, content=json.dumps([shape_of(one) for one in every]))


async def _logs(desk: Desk, services: Services, name: str, _args: Mapping[str, Any]) -> ToolResult:
    report = await services.logs(name)
    if report is None:
        return _unknown(name)
    limit = desk.bench.config.output_limit
    shown = report.output[-limit:].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    shape = {"output": shown, "truncated": report.truncated or len(report.output) > limit}
    return ToolResult(ok=True, content=json.dumps(shape, ensure_ascii=False), detail=shape)


_WAYS: Mapping[str, Callable[[Desk, Services, str, Mapping[str, Any]], Awaitable[ToolResult]]] = {
    "start": _start,
    "stop": _stop,
    "status": _status,
    "logs": _logs,
}


def shape_of(standing: Standing) -> dict[str, Any]:
    """Return how a service is in its public shape."""
    return {
        "name": standing.name,
        "state": standing.state,
        "ends": standing.ends,
        "starts": standing.run,
        **({"started_again_with_its_sandbox": True} if standing.woken else {}),
        **({"port": standing.port, "ready": standing.ready} if standing.port else {}),
        **({"exit_code": standing.code} if standing.ends else {}),
        **({"again_in_seconds": standing.again_in} if standing.state == "waiting" else {}),
    }


def _unknown(name: str) -> ToolResult:
    return ToolResult(ok=False, content=f"there is no service {name!r} in this sandbox")


def _fits(desk: Desk) -> bool:
    config = desk.bench.config
    keeps = {Feature.JOBS, Feature.PERSISTENT} <= registry.plugin(config.provider).features
    return keeps and config.persistent and not desk.bench.files_only


service = Tool(
    spec=_spec,
    asks=lambda config: config.permission_mode in {"ask", "edit"},
    act=_act,
    repeatable=True,
    fits=_fits,
)
