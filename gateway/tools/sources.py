"""Where external tools come from: installed packages, the agent's HTTP tools and MCP servers, the request."""

from __future__ import annotations

from delivery.deliveries.transactions import Transactions
from gateway.infra.backing_services import BackingServices
from gateway.jobs.progress import JobProgress
from gateway.jobs.settlement import JobSettlement
from gateway.records.records import Records
from gateway.tools.background_calls import BackgroundCalls
from gateway.tools.call_runner import CallRunner
from gateway.tools.executor import TOOLS
from gateway.tools.external.client_tools import with_client_tools
from gateway.tools.external.hooked_tools import HookedTools
from gateway.tools.external.http_tools import HttpTools
from gateway.tools.external.installed_tools import InstalledTools, load_tools
from gateway.tools.external.openapi_tools import OpenApiTools
from gateway.tools.external.script_tools import ScriptTools
from gateway.tools.external_tools import OpenExternalTools
from gateway.tools.hooks.functions import load_hooks
from gateway.tools.mcp.mcp_tools import McpTools
from gateway.tools.mcp.reads import READ_TOOLS
from gateway.tools.mcp.sign_ins.links import SignInLinks
from gateway.tools.messages.send_tools import SEND_TOOLS, with_send_tools


def open_background_calls(
    runner: CallRunner, backing: BackingServices, transactions: Transactions, settlement: JobSettlement
) -> BackgroundCalls:
    """Return the calls of a gateway's tools."""
    settings = backing.settings
    return BackgroundCalls(
        leases=backing.leases,
        jobs=runner.jobs,
        settlement=settlement,
        progress=JobProgress(transactions, after=settings.job_progress_after),
        runner=runner,
        drain_timeout=settings.drain_timeout,
    )


def open_external_tools(transactions: Transactions, calls: BackgroundCalls) -> OpenExternalTools:
    """Return the function that opens a turn's external tools."""
    return with_send_tools(transactions, with_client_tools(calls.open))


def open_own_tools(records: Records, sign_in_links: SignInLinks) -> OpenExternalTools:
    """Return the function that opens the tools of installed packages and of an agent's record.

    Raises BrokenTool, BrokenHook.
    """
    mcp_tools = McpTools(records, sign_in_links)
    requests = HttpTools(records, OpenApiTools(records, ScriptTools(mcp_tools.open).open).open)
    tools = InstalledTools(load_tools(reserved={*TOOLS, *SEND_TOOLS, *READ_TOOLS}), requests.open)
    return HookedTools(records, load_hooks(), tools.open).open
