"""Find the tools of installed packages: entry points of the group `dovecote.tools`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint

from gateway.config.installed import installed_entry_points
from gateway.records.agent import agent_config
from gateway.tools.external.functions import BrokenTool, function_tool
from gateway.tools.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.tool import Tool, ToolContext

GROUP = "dovecote.tools"


def load_tools(entries: Iterable[EntryPoint] | None = None, *, reserved: Collection[str]) -> dict[str, Tool]:
    """Return the tools of installed packages by name; raises BrokenTool, also for a `reserved` name."""
    found: dict[str, Tool] = {}
    entries = installed_entry_points(GROUP) if entries is None else entries
    for entry in sorted(entries, key=lambda one: one.name):
        if entry.name in reserved:
            raise BrokenTool(f"tool {entry.name!r} ({entry.value}): there is a built-in tool of this name")
        if entry.name in found:
            raise BrokenTool(f"two installed packages both register the tool {entry.name!r}")
        try:
            function = entry.load()
        except Exception as error:  # a third party's import may raise anything: name the package and stop
            raise BrokenTool(f"tool {entry.name!r} ({entry.value}) does not load: {error}") from error
        found[entry.name] = function_tool(entry.name, function)
    return found


class InstalledTools:
    """Offers the tools of installed packages beside other external tools."""

    def __init__(self, tools: Mapping[str, Tool], others: OpenExternalTools) -> None:
        self._tools = tools
        self._others = others

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[ExternalTools]:
        """Open the tools that the agent's `tools` allows, and the others."""
        return self._open(context) if self._tools else self._others(context)

    @asynccontextmanager
    async def _open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        allowed = agent_config(context.agent).tool_names if context.agent is not None else None
        tools = {name: one for name, one in self._tools.items() if allowed is None or name in allowed}
        async with self._others(context) as others:
            yield replace(others, tools={**others.tools, **tools})
