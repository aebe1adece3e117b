"""The expose tool: get a public URL of a port of the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import commands_need_approval
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, fixed
from sandbox import registry
from sandbox.port import Feature

DEFAULT_PORT = 8080
"""The port of a web server unless another is given."""

MAX_PORT = 65535


_SPEC = ToolSpec(
    name="expose",
    description=(
        "Get a public URL for a TCP port of your sandbox, such as that of a web server. "
        "Start the server first, on address 0.0.0.0, so that it outlives the command that "
        "started it. Anyone who has the URL may be able to use it: give it only to the people it is for."
    ),
    schema={
        "type": "object",
        "properties": {
            "port": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_PORT,
                "description": f"the port inside; {DEFAULT_PORT} if left out",
            }
        },
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    port = port_argument(args) or DEFAULT_PORT
    sandbox = await context.environment_resolver.sandbox(context.environment)
    shape = {"port": port, "url": await sandbox.expose(port)}
    note = "It answers while something listens at this port, on 0.0.0.0, and the sandbox is awake."
    return ToolResult(ok=True, content=json.dumps({**shape, "note": note}), detail=shape)


def port_argument(args: Mapping[str, Any]) -> int | None:
    """Return the port of a call, or None; raises InvalidArguments."""
    port = args.get("port")
    if port is None or (type(port) is int and 1 <= port <= MAX_PORT):
        return port
    raise InvalidArguments(f"port must be a whole number from 1 to {MAX_PORT}, not {port!r}")


def _is_available(context: ToolContext) -> bool:
    config = context.environment.config
    offers = Feature.EXPOSE in registry.plugin(config.provider).features
    return offers and config.persistent and not context.environment.files_only


expose = Tool(
    spec=fixed(_SPEC),
    needs_approval=commands_need_approval,
    run=_run,
    idempotent=True,
    is_available=_is_available,
)
