"""Where external tools come from: installed packages, the agent's MCP servers, then the client's request."""

from __future__ import annotations

from gateway.records.records import Records
from gateway.tools.executor import TOOLS
from gateway.tools.external.client_tools import with_client_tools
from gateway.tools.external.external_tools import OpenExternalTools
from gateway.tools.external.installed_tools import InstalledTools, load_tools
from gateway.tools.external.mcp_tools import McpTools


def open_external_tools(records: Records) -> OpenExternalTools:
    """Return the function that opens a turn's external tools; raises BrokenTool for a broken package."""
    installed = InstalledTools(load_tools(reserved=TOOLS), McpTools(records).open)
    return with_client_tools(installed.open)
