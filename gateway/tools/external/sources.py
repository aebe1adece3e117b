"""Where external tools come from: installed packages, the agent's HTTP tools and MCP servers, the request."""

from __future__ import annotations

from delivery.deliveries.transactions import Transactions
from gateway.records.records import Records
from gateway.tools.executor import TOOLS
from gateway.tools.external.client_tools import with_client_tools
from gateway.tools.external.external_tools import OpenExternalTools
from gateway.tools.external.hooked_tools import HookedTools
from gateway.tools.external.http_tools import HttpTools
from gateway.tools.external.installed_tools import InstalledTools, load_tools
from gateway.tools.external.openapi_tools import OpenApiTools
from gateway.tools.external.script_tools import ScriptTools
from gateway.tools.hooks.functions import load_hooks
from gateway.tools.mcp.mcp_tools import McpTools
from gateway.tools.mcp.reads import READ_TOOLS
from gateway.tools.mcp.sign_in_links import SignInLinks
from gateway.tools.messages.send_tools import SEND_TOOLS, with_send_tools


def open_external_tools(
    records: Records, transactions: Transactions, sign_in_links: SignInLinks | None = None
) -> OpenExternalTools:
    """Return the function that opens a turn's external tools; raises BrokenTool, BrokenHook."""
    mcp_tools = McpTools(records, sign_in_links)
    requests = HttpTools(records, OpenApiTools(records, ScriptTools(mcp_tools.open).open).open)
    tools = InstalledTools(load_tools(reserved={*TOOLS, *SEND_TOOLS, *READ_TOOLS}), requests.open)
    others = HookedTools(records, load_hooks(), tools.open)
    return with_send_tools(transactions, with_client_tools(others.open))
