"""Where external tools come from: installed packages, the agent's HTTP tools and MCP servers, the request."""

from __future__ import annotations

from gateway.records.records import Records
from gateway.tools.executor import TOOLS
from gateway.tools.external.client_tools import with_client_tools
from gateway.tools.external.external_tools import OpenExternalTools
from gateway.tools.external.hooked_tools import HookedTools
from gateway.tools.external.http_tools import HttpTools
from gateway.tools.external.installed_tools import InstalledTools, load_tools
from gateway.tools.external.mcp_tools import McpTools
from gateway.tools.hooks.functions import load_hooks


def open_external_tools(records: Records) -> OpenExternalTools:
    """Return the function that opens a turn's external tools; raises BrokenTool, BrokenHook."""
    requests = HttpTools(records, McpTools(records).open)
    tools = InstalledTools(load_tools(reserved=TOOLS), requests.open)
    return with_client_tools(HookedTools(records, load_hooks(), tools.open).open)
