"""The action `live_view` of the computer tool: a link with which people see and use the desktop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from delivery.database.clock import utc_now
from delivery.events.event import rfc3339
from gateway.accounts.view_links import DEFAULT_MINUTES, DESKTOP_PORT, MAX_MINUTES
from gateway.agents.port import ToolResult
from gateway.maintenance.sandbox_control import sandbox_id
from gateway.tools.files.file_arguments import int_argument
from gateway.tools.tool import ToolContext
from sandbox import registry
from sandbox.lifecycle.services import SandboxServices
from sandbox.port import Feature

SERVICE = "desktop"
COMMAND = "dovecote-desktop"


def minutes_argument(args: Mapping[str, Any]) -> int:
    """Return for how many minutes a call wants the link; raises InvalidArguments."""
    given = {name: value for name, value in args.items() if value is not None}
    return int_argument(given, "minutes", default=DEFAULT_MINUTES, maximum=MAX_MINUTES)


async def create_live_view(context: ToolContext, args: Mapping[str, Any]) -> ToolResult:
    """Start the desktop unless it runs, and return a link to it that expires."""
    minutes, environment = minutes_argument(args), context.environment
    links = context.environment_resolver.view_links
    if links is None or Feature.EXPOSE not in registry.plugin(environment.provider).features:
        detail = f"the provider {environment.provider} reaches no port of a sandbox: send a screenshot"
        return ToolResult(ok=False, content=detail)
    sandbox = await context.environment_resolver.sandbox(environment)
    await sandbox.expose(DESKTOP_PORT)
    services = SandboxServices(
        sandbox=sandbox, sleeps_with_sandbox=environment.spec.services_sleep_with_sandbox
    )
    status = await services.start(SERVICE, COMMAND, DESKTOP_PORT)
    if not status.ready:
        await services.stop(SERVICE)
        detail = f"{COMMAND} does not start: the sandbox needs the variant desktop of the image"
        return ToolResult(ok=False, content=detail)
    url, expires = links.issue(
        context.turn.account,
        sandbox_id(environment.spec.label),
        port=DESKTOP_PORT,
        minutes=minutes,
        now=utc_now(),
    )
    shape = {"url": url, "expires": rfc3339(expires)}
    note = "Anyone who has the link can see and use the desktop until then, while the sandbox is awake."
    return ToolResult(ok=True, content=json.dumps({**shape, "note": note}), detail=shape)
