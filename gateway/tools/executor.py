"""Execute the tool calls of one turn: approved if required, checkpointed and published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any

import structlog

from channels.message import StepState, ToolStep
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType
from gateway.agents.port import PendingToolCall, ToolResult, Tools, ToolSpec
from gateway.conversations.approver_rules import may_approve_own_turn
from gateway.conversations.text_change import PresentText
from gateway.files.attachments import FetchedAttachments
from gateway.store.turns import turn_steps
from gateway.store.turns.turn_steps import StepRow
from gateway.tools.builtin.ask_person import ask_person
from gateway.tools.builtin.async_status import async_status
from gateway.tools.builtin.bash import bash
from gateway.tools.builtin.deliver_file import deliver_file
from gateway.tools.builtin.expose import expose
from gateway.tools.builtin.load_skill import load_skill
from gateway.tools.builtin.memory import memory_delete, memory_search, memory_write
from gateway.tools.builtin.schedules import schedule_create, schedule_delete, schedule_list
from gateway.tools.builtin.services import service
from gateway.tools.call_approvals import CallApprovals, Standing
from gateway.tools.change_previews import ChangePreviews
from gateway.tools.configuration import TurnConfiguration
from gateway.tools.files.edit import edit
from gateway.tools.files.file_operations import FILE_OPERATIONS
from gateway.tools.files.glob import glob
from gateway.tools.files.grep import grep
from gateway.tools.files.list_files import list_files
from gateway.tools.files.read import read
from gateway.tools.files.search import search
from gateway.tools.files.view_image import view_image
from gateway.tools.files.write import write
from gateway.tools.git.git_tools import GIT_TOOLS
from gateway.tools.hooks.turn_hooks import TurnHooks, denied_result
from gateway.tools.live_output import LiveOutput
from gateway.tools.screens.browser import browser
from gateway.tools.screens.computer import computer
from gateway.tools.step_results import describe_call, event_data, interrupted_result, recorded_result
from gateway.tools.tool import SEVERAL, InvalidArguments, Tool, ToolContext, call_key, validate_arguments
from sandbox.errors import SandboxError
from sandbox.lifecycle.waits import Wait, reported_wait

log = structlog.get_logger(__name__)

TOOLS: Mapping[str, Tool] = {
    "bash": bash,
    "read": read,
    "write": write,
    "edit": edit,
    "glob": glob,
    "grep": grep,
    "list_files": list_files,
    "search": search,
    **FILE_OPERATIONS,
    **GIT_TOOLS,
    "view_image": view_image,
    "browser": browser,
    "computer": computer,
    "load_skill": load_skill,
    "async_status": async_status,
    "deliver_file": deliver_file,
    "expose": expose,
    "service": service,
    "ask_person": ask_person,
    "schedule_create": schedule_create,
    "schedule_list": schedule_list,
    "schedule_delete": schedule_delete,
    "memory_write": memory_write,
    "memory_search": memory_search,
    "memory_delete": memory_delete,
}

ShowStep = Callable[[ToolStep], None]
"""Receive a call that began or ended. Never waits."""

BeginTransaction = Callable[[str], AbstractAsyncContextManager[Transaction]]
"""Begin a transaction that fails unless this attempt still holds the conversation."""


class ToolExecutor(Tools):
    """The tools of one attempt at one turn.

    Of several with one name the client's is offered, or else the built-in one.
    """

    def __init__(
        self,
        context: ToolContext,
        *,
        begin: BeginTransaction,
        check: Callable[[], None],
        allowed: Sequence[str] | None,
        show_step: ShowStep | None = None,
        external: Mapping[str, Tool] | None = None,
        hooks: TurnHooks | None = None,
        answer_files: Mapping[str, FetchedAttachments] | None = None,
    ) -> None:
        context = replace(context, makes_job_calls=any(one.jobs for one in (external or {}).values()))
        self._context = context
        self._live_output = LiveOutput(context.turn, context.publish_transient)
        self._show_step = show_step or (lambda _step: None)
        self._hooks = hooks or TurnHooks()
        self._answer_files = answer_files or {}
        self._approves_own: bool | None = None
        self._configuration, self._running = TurnConfiguration(context), 0
        self._begin_transaction = begin
        self._check = check
        contexts = _contexts(context)
        self._tools = {
            name: tool
            for name, tool in TOOLS.items()
            if (allowed is None or name in allowed) and any(map(tool.is_offered, contexts.values()))
        }
        of_client = {name: tool for name, tool in (external or {}).items() if tool.is_of_client}
        self._tools = {**(external or {}), **self._tools, **of_client}
        self._contexts = contexts
        self._approvals = CallApprovals(
            context, address=self.call_address, definition=self.call_definition, file=self._present_file
        )

    @cached_property
    def _specs(self) -> Sequence[ToolSpec]:
        listed = [tool for tool in self._tools.values() if tool.is_listed]
        if len(self._contexts) < SEVERAL:
            return [tool.spec(self._context) for tool in listed]
        return [_with_workspace_argument(tool.spec(self._context), tool, self._contexts) for tool in listed]

    def list(self) -> Sequence[ToolSpec]:
        """Return the tools of this turn."""
        return self._specs

    async def needs_approval(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> bool:
        """Return whether a person must approve this call first (and has not yet)."""
        await self._ensure_current(call)
        if name not in self._tools:
            return False
        if self._hooks.hooks and await self._is_done(call):
            return False  # hooks are asked once about a call
        decided = await self._hooks.before_tool(name, args, call)
        if decided.denied is not None:
            return False  # the call returns the reason
        pending = PendingToolCall(id=call, name=name, args=decided.call.args or {})
        return await self._standing(pending, typed_by_asker=typed_by_asker) is Standing.WAITS

    async def _standing(self, call: PendingToolCall, *, typed_by_asker: bool) -> Standing:
        """Return whether a call may run without a further decision of a person."""
        tool = self._tools.get(call.name)
        if tool is None or not self._mode_requires_approval(tool, call.args, typed_by_asker=typed_by_asker):
            return Standing.FREE
        if typed_by_asker and not tool.asks_person and await self._asker_may_approve():
            return Standing.FREE
        return Standing.FREE if await self._get_step(call.id) else await self._approvals.standing(call)

    def _mode_requires_approval(self, tool: Tool, args: Mapping[str, Any], *, typed_by_asker: bool) -> bool:
        """Return whether the permission mode of the call's workspace requires an approval.

        A call that would be refused requires none: no approval is requested in vain.
        """
        try:
            context = tool.context_of(self._context, args)
            self._validate(tool, args, context)
            refused = not typed_by_asker and tool.objection(context, args) is not None
        except InvalidArguments:
            return False  # the call fails for this reason
        if refused or not tool.is_offered(context):
            return False
        return tool.call_needs_approval(args) or tool.needs_approval(context.environment.config)

    def call_address(self, call: PendingToolCall) -> str | None:
        """Return what a call would send a request to, from the gateway."""
        tool = self._tools.get(call.name)
        return tool.address(call.args) if tool is not None and tool.address is not None else None

    def call_works_somewhere(self, call: PendingToolCall) -> bool:
        """Return whether the argument `workspace` of a call names where it works."""
        tool = self._tools.get(call.name)
        return tool is None or tool.uses_workspace

    def call_definition(self, call: PendingToolCall) -> str | None:
        """Return a hash of what the author of a call's tool states about it, if that can change."""
        tool = self._tools.get(call.name)
        return tool.definition if tool is not None else None

    def can_run(self, call: PendingToolCall) -> bool:
        """Return whether there is such a tool and the call's arguments fit it: others fail without effect."""
        tool = self._tools.get(call.name)
        if tool is None:
            return False
        try:
            context = tool.context_of(self._context, call.args)
            self._validate(tool, call.args, context)
        except InvalidArguments:
            return False
        return tool.is_offered(context)

    def changed_calls(self, calls: Sequence[PendingToolCall]) -> Sequence[PendingToolCall]:
        """Return calls with the arguments that hooks gave them: these are what people decide about."""
        return [self._as_question(call) for call in self._hooks.with_changes(calls)]

    def _as_question(self, call: PendingToolCall) -> PendingToolCall:
        tool = self._tools.get(call.name)
        return tool.as_question(self._context, call) if tool is not None and tool.as_question else call

    async def preview_changes(
        self, calls: Sequence[PendingToolCall], *, start: bool = False
    ) -> Mapping[str, PresentText]:
        """Return the files that calls would change one after the other, of those that can be read.

        With `start` sandboxes are started to read them.
        """
        previews = ChangePreviews(context=self._context, validate=self._validate, start=start)
        found = {
            call.id: await previews.of(self._tools[call.name], call)
            for call in calls
            if call.name in self._tools
        }
        return {call: file for call, file in found.items() if file is not None}

    async def _present_file(self, call: PendingToolCall) -> PresentText | None:
        return (await self.preview_changes([call], start=True)).get(call.id)

    async def _asker_may_approve(self) -> bool:
        """Return whether the person who started the turn may approve its commands by typing them."""
        if self._approves_own is None:
            async with self._context.jobs.read() as connection:
                self._approves_own = await may_approve_own_turn(connection, self._context.turn)
        return self._approves_own

    async def _answered_tool(self, name: str, call: str) -> Tool | None:
        """Return the tool of a question that a person has answered, although it is not offered any more."""
        tool = TOOLS.get(name)
        is_answered = tool is not None and tool.asks_person and await self._approvals.answer(call) is not None
        return tool if is_answered else None

    def _files_of(self, call: str) -> FetchedAttachments:
        return self._answer_files.get(call) or FetchedAttachments()

    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Execute a call once: a call id that was executed before returns its recorded result."""
        await self._ensure_current(call)
        tool = self._tools.get(name) or await self._answered_tool(name, call)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolResult(ok=False, content=f"there is no tool {name!r}; there are {known}")
        earlier = await self._get_step(call)
        if earlier is not None and earlier.state == "done":
            return replace(recorded_result(earlier), images=self._files_of(call).images)
        decided = await self._hooks.before_tool(name, args, call)
        args = decided.call.args or {}
        if decided.denied is not None:
            return await self._refuse(call, name, args, denied_result(decided.denied))
        pending = PendingToolCall(id=call, name=name, args=args)
        standing = await self._standing(pending, typed_by_asker=typed_by_asker)
        if standing is not Standing.FREE:
            refused = ToolResult(ok=False, content=self._approvals.reason(standing, call))
            return refused if standing is Standing.WAITS else await self._refuse(call, name, args, refused)
        if earlier is not None and not await self._may_repeat(tool, args, call):
            return await self._end_step(call, name, interrupted_result(args, self._context.interruption))
        if earlier is None:
            await self._begin_step(call, name, args)
        step = ToolStep(id=call, title=describe_call(name, args))
        self._show_step(step)
        result = await self._run_tool(tool, args, call, typed_by_asker=typed_by_asker)
        result = await self._hooks.after_tool(name, args, call, result)
        self._show_step(replace(step, state=StepState.DONE if result.ok else StepState.FAILED))
        return await self._end_step(call, name, result)

    async def _refuse(self, call: str, name: str, args: Mapping[str, Any], result: ToolResult) -> ToolResult:
        """Record a call that is not executed."""
        if await self._get_step(call) is None:
            await self._begin_step(call, name, args)
        return await self._end_step(call, name, result)

    async def _ensure_current(self, call: str) -> None:
        """Raise ConfigurationChanged, unless calls are running: they would be interrupted."""
        if not self._running:
            await self._configuration.ensure_current(call)

    async def _get_step(self, call: str) -> StepRow | None:
        if self._context.turn.attempt <= 1 and self._context.turn.paused is None:
            return None
        async with self._context.jobs.read() as connection:
            return await turn_steps.get(connection, self._context.turn.id, call)

    async def _may_repeat(self, tool: Tool, args: Mapping[str, Any], call: str) -> bool:
        """Return whether an interrupted call can be executed again: without harm, or to find its job."""
        if tool.idempotent or args.get("background"):
            return True
        return await tool.is_job(call_key(self._context.turn.id, call))

    async def _is_done(self, call: str) -> bool:
        step = await self._get_step(call)
        return step is not None and step.state == "done"

    async def _begin_step(self, call: str, name: str, args: Mapping[str, Any]) -> None:
        turn = self._context.turn
        async with self._begin_transaction("step.begin") as tx:
            await turn_steps.begin(tx.connection, turn.id, call, tool=name, args=args)
            tx.emit(
                Event.now(
                    EventType.TOOL_CALLED,
                    turn.conversation,
                    {"name": name, "args": dict(args), "call": call, "attempt": turn.attempt},
                    turn=turn.id,
                )
            )

    async def _run_tool(
        self, tool: Tool, args: Mapping[str, Any], call: str, *, typed_by_asker: bool
    ) -> ToolResult:
        self._check()
        self._running += 1
        try:
            context = tool.context_of(self._context, args)
            if not tool.is_offered(context):
                return ToolResult(ok=False, content="this tool is not offered in that workspace")
            if context.agent_files is not None and context.agent is not None:
                await context.agent_files.install(context.agent, context.environment)
            self._validate(tool, args, context)
            objection = tool.objection(context, args)
            if objection and not typed_by_asker:
                return ToolResult(ok=False, content=objection)
            if tool.asks_person:
                answer = await self._approvals.answer(call)
                context = replace(context, answer=answer, answer_files=self._files_of(call))
            if tool.uses_workspace:
                trees, environments = context.files.trees, context.environments
                with reported_wait(Wait.LOADING):
                    await trees.begin(context.turn, environments or {"": context.environment})
            given = _without_workspace_argument(args, context) if tool.uses_workspace else args
            key = call_key(context.turn.id, call)
            async with self._live_output.of_call(call) as listener:
                result = await tool.run(replace(context, on_output=listener), given, key)
            return replace(result, detail={"note": objection, **result.detail}) if objection else result
        except InvalidArguments as error:
            return ToolResult(ok=False, content=f"wrong arguments: {error}")
        except SandboxError as error:
            log.warning("tool.sandbox_failed", turn=self._context.turn.id, error=str(error))
            return ToolResult(ok=False, content=error.to_answer())
        finally:
            self._running -= 1

    def _validate(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> None:
        """Raise InvalidArguments unless the arguments match the schema that the model was given."""
        spec = _with_workspace_argument(tool.spec(context), tool, self._contexts)
        (tool.validate or validate_arguments)(spec.schema, args)

    async def _end_step(self, call: str, name: str, result: ToolResult) -> ToolResult:
        turn = self._context.turn
        recorded = {"ok": result.ok, "content": result.content, "detail": dict(result.detail)}
        async with self._begin_transaction("step.end") as tx:
            await turn_steps.end(tx.connection, turn.id, call, recorded)
            tx.emit(
                Event.now(
                    EventType.TOOL_COMPLETED,
                    turn.conversation,
                    {"name": name, "call": call, "attempt": turn.attempt, **event_data(result)},
                    turn=turn.id,
                )
            )
        return result


def _contexts(context: ToolContext) -> Mapping[str, ToolContext]:
    """Return the context with each of its environments, by the workspace's name."""
    environments = context.environments or {"": context.environment}
    return {name: replace(context, environment=one) for name, one in environments.items()}


def _with_workspace_argument(spec: ToolSpec, tool: Tool, contexts: Mapping[str, ToolContext]) -> ToolSpec:
    """Return a tool's spec with an argument that names one of several workspaces."""
    if not tool.uses_workspace:
        return spec
    names = [name for name, context in contexts.items() if tool.is_offered(context)]
    argument = {"type": "string", "enum": names, "description": f"which workspace; {names[0]} if left out"}
    return replace(
        spec, schema={**spec.schema, "properties": {**spec.schema["properties"], "workspace": argument}}
    )


def _without_workspace_argument(args: Mapping[str, Any], context: ToolContext) -> Mapping[str, Any]:
    several = len(context.environments) >= SEVERAL
    return {name: value for name, value in args.items() if not (several and name == "workspace")}
