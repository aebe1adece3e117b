"""Shared parts of tools that show a screen: where they are offered, approvals, and their driver."""

from __future__ import annotations

from gateway.tools.tool import ToolContext
from sandbox import registry
from sandbox.lifecycle.screen_driver import ScreenDriver
from sandbox.port import Feature


def is_offered(context: ToolContext, runtime: str) -> bool:
    """Return whether the sandbox keeps services, has the runtime, and has a workspace for pictures."""
    environment = context.environment
    keeps = {Feature.JOBS, Feature.PERSISTENT} <= registry.plugin(environment.provider).features
    has_place = environment.workspace is not None and not environment.files_only
    declared = runtime in environment.config.runtimes and runtime not in environment.missing_runtimes
    return keeps and has_place and declared and environment.config.persistent


async def open_driver(context: ToolContext) -> ScreenDriver:
    """Return the driver of the context's sandbox."""
    sandbox = await context.environment_resolver.sandbox(context.environment)
    sleeps = context.environment.spec.services_sleep_with_sandbox
    return ScreenDriver(sandbox=sandbox, sleeps_with_sandbox=sleeps)
