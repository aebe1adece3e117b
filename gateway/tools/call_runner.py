"""Make the tool call of a job: with the tools of its agent as they are now, for the person who asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from delivery.database.engine import Database
from gateway.agents.port import PendingToolCall, ToolResult
from gateway.conversations.approval_question import CallTarget
from gateway.conversations.call_binding import covers
from gateway.environments.fingerprint import fingerprint_all
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.collection import FileCollector
from gateway.jobs.jobs import Jobs
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.turns import approvals, turns
from gateway.store.turns import jobs as job_store
from gateway.store.turns.job_calls import JobCall
from gateway.store.turns.turns import Turn
from gateway.tools.external_tools import OpenExternalTools
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, call_key
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

CHANGED = (
    "The tool, its address or the sandbox was changed after a person approved this call, so it was not made. "
    "Call the tool again if it is still needed: then a person is asked again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrigin:
    """The turn that made a call, and its agent."""

    turn: Turn
    agent: Record


@dataclass(frozen=True, slots=True)
class CallRunner:
    """Makes calls outside of their turns; each opens its tools for itself, and closes them."""

    database: Database
    environment_resolver: EnvironmentResolver
    jobs: Jobs
    files: FileCollector
    open_tools: OpenExternalTools

    async def find_origin(self, call: JobCall) -> CallOrigin | None:
        """Return where a recorded call comes from; None if its turn or its agent was deleted."""
        async with self.database.read() as connection:
            job = await job_store.get(connection, call.account, call.job)
            turn = await turns.get(connection, call.account, job.turn) if job is not None else None
            agent = await records.get_by_id(connection, job.agent) if job is not None else None
        if turn is None or agent is None or agent.account != call.account:
            return None
        return CallOrigin(turn=turn, agent=agent)

    async def run(self, origin: CallOrigin, call: JobCall, *, take_result: Callable[[], bool]) -> ToolResult:
        """Make a call and return its result; failures are results.

        `take_result` is asked when there is a result, and returns whether that is a job's: then the hooks
        after tool calls are asked here.
        """
        try:
            context = await self._context(origin, call)
            async with self.open_tools(context) as external:
                tool = external.tools.get(call.tool)
                if tool is None:
                    why = " ".join(external.notes)
                    return ToolResult(
                        ok=False, content=f"the agent has no tool {call.tool} now. {why}".strip()
                    )
                if not await self._is_as_approved(context, call, tool):
                    return ToolResult(ok=False, content=CHANGED)
                result = await tool.run(context, call.args, call.job)
                if take_result():
                    result = await external.hooks.after_tool(call.tool, call.args, call.job, result)
                return result
        except InvalidArguments as error:
            return ToolResult(ok=False, content=f"wrong arguments: {error}")
        except SandboxError as error:
            log.warning("call.sandbox_failed", job=call.job, error=str(error))
            return ToolResult(ok=False, content=error.to_answer())
        except Exception:  # a tool may raise anything: its job ends nevertheless
            log.exception("call.failed", job=call.job, tool=call.tool)
            return ToolResult(ok=False, content="the call failed; the operator finds the reason in the log")

    async def _is_as_approved(self, context: ToolContext, call: JobCall, tool: Tool) -> bool:
        """Return whether a call is what a person approved, or needed no approval."""
        async with self.database.read() as connection:
            asked = await approvals.list_for_turn(connection, context.turn.id)
        approved = [
            one
            for one in asked
            if one.state == "approved" and call_key(context.turn.id, one.call) == call.job
        ]
        target = CallTarget(
            address=tool.address(call.args) if tool.address is not None else None, definition=tool.definition
        )
        fingerprint = fingerprint_all(context.environments, context.environment)
        return not approved or any(
            covers(one, PendingToolCall(id=one.call, name=call.tool, args=call.args), fingerprint, target)
            for one in approved
        )

    async def _context(self, origin: CallOrigin, call: JobCall) -> ToolContext:
        turn = replace(origin.turn, input="")  # its text may name a prompt of a server
        agent = _with_server(origin.agent, call.server)
        environments = await self.environment_resolver.resolve_all(
            origin.agent, turn.conversation, person=turn.asker
        )
        return ToolContext(
            turn=turn,
            environment=next(iter(environments.values())),
            environment_resolver=self.environment_resolver,
            jobs=self.jobs,
            files=self.files,
            agent=agent,
            environments=environments,
        )


def _with_server(agent: Record, server: str | None) -> Record:
    """Return an agent with this MCP server alone, so that the others are not connected for the call."""
    servers = agent.config.get("mcp") or {}
    secrets = {
        pointer: sealed
        for pointer, sealed in agent.encrypted_secrets.items()
        if not pointer.startswith("/mcp/") or pointer.startswith(f"/mcp/{server}/")
    }
    kept = {server: servers[server]} if server in servers else {}
    return replace(agent, config={**agent.config, "mcp": kept}, encrypted_secrets=secrets)
