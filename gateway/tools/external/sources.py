"""Where external tools come from: installed packages, then the agent's MCP servers."""

from __future__ import annotations

from gateway.records.records import Records
from gateway.tools.executor import TOOLS
from gateway.tools.external.external_tools import OpenExternalTools
from gateway.tools.external.installed_tools import InstalledTools, load_tools
from gateway.tools.external.mcp_tools import McpTools


def open_external_tools(records: Records) -> OpenExternalTools:
    """Return the function that opens a turn's external tools; raises BrokenTool for a broken package."""
    return InstalledTools(load_tools(reserved=TOOLS), McpTools(records).open).open
