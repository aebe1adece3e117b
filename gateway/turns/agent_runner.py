"""Run the agent of a turn with its instructions, sandboxes, files and tools."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from delivery.events.port import EventStream
from gateway.accounts.budgets import GetMeteredAgent
from gateway.agents.client_request import ClientRequest
from gateway.agents.port import TurnInput
from gateway.conversations.commands.compaction import input_trigger
from gateway.conversations.supplied_history import without_added
from gateway.environments.agent_files import AgentFiles
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.attachments import AttachmentFetcher, FetchedAttachments
from gateway.files.collection import FileCollector
from gateway.jobs.jobs import Jobs
from gateway.memory.memories import Memories, TurnMemory
from gateway.records.agent import OperatorModel, agent_config, agent_spec
from gateway.schedules.schedules import Schedules
from gateway.store.accounts.records import Record
from gateway.tools.executor import ToolExecutor
from gateway.tools.external_tools import ExternalTools, OpenExternalTools, no_external_tools
from gateway.tools.tool import ToolContext
from gateway.turns.attempt import TurnAttempt
from gateway.turns.claim import ClaimedTurn
from gateway.turns.file_saving import save_files
from gateway.turns.turn_prompt import TurnPrompt, prompt_for


class AgentRunner:
    """Runs the agents of turns. `get_agent` returns the agent for a spec; the rest is what its tools use."""

    def __init__(
        self,
        *,
        stream: EventStream,
        environment_resolver: EnvironmentResolver,
        jobs: Jobs,
        attachments: AttachmentFetcher,
        file_collector: FileCollector,
        agent_files: AgentFiles,
        schedules: Schedules,
        memories: Memories | None = None,
        get_agent: GetMeteredAgent,
        open_external_tools: OpenExternalTools = no_external_tools,
        operator_model: OperatorModel | None = None,
    ) -> None:
        self._stream = stream
        self._environment_resolver = environment_resolver
        self._jobs = jobs
        self._attachments = attachments
        self._file_collector = file_collector
        self._agent_files = agent_files
        self._schedules = schedules
        self._memories = memories
        self._get_agent = get_agent
        self._open_external_tools = open_external_tools
        self._operator_model = operator_model or OperatorModel()

    async def run(self, claim: ClaimedTurn, attempt: TurnAttempt) -> None:
        """Run the agent of a claimed turn until it has answered, or waits for approvals.

        Raises AgentError, SandboxError, UnreadableHistory and what the bounds of the turn raise in it.
        """
        async with AsyncExitStack() as stack:
            await self._run_with(stack, claim, attempt)

    async def _run_with(self, stack: AsyncExitStack, claim: ClaimedTurn, attempt: TurnAttempt) -> None:
        """Run the agent; what it uses is closed by the stack."""
        turn = claim.turn
        prompt = await self._prompt_of(claim)
        memory = await self._memory_of(claim) if prompt.has_model else None
        prompt = prompt.with_notes(await memory.notes_for(turn.input) if memory else "")
        environments = await self._resolve_environments(claim, attempt)
        context = await self._tool_context(claim, environments, memory)
        attachments = await self._attachments.fetch(
            turn, context.environment, claim.approvals, has_incoming=claim.has_incoming
        )
        external = await stack.enter_async_context(self._open_external_tools(context))
        tools = _tools(attempt, claim.agent, context, external, attachments)
        prompt = prompt.with_external_tools(external, turn)
        prompt = prompt.in_room(claim.agent, turn.origin, environments, tools)
        attempt.set_input_text(prompt.render_input)
        attempt.approvals.bind_tools(tools)
        if await attempt.renew_approvals(claim.approvals):
            return
        for one in environments.values():
            use = self._environment_resolver.in_use(one, changed=turn.trigger == "job")
            await stack.enter_async_context(use)
        agent = external.hooks.wrap(self._get_agent(prompt.agent, claim.conversation))
        collect_files = partial(self._file_collector.collect, turn, context.environment)
        await attempt.run(agent, _turn_input(claim, attempt, prompt, attachments), tools, collect_files)

    async def _prompt_of(self, claim: ClaimedTurn) -> TurnPrompt:
        spec = agent_spec(claim.agent, self._operator_model, claim.turn.model)
        return prompt_for(await self._agent_files.with_instructions(claim.agent, spec))

    async def _memory_of(self, claim: ClaimedTurn) -> TurnMemory | None:
        return await self._memories.of_turn(claim.turn, claim.conversation) if self._memories else None

    async def _resolve_environments(
        self, claim: ClaimedTurn, attempt: TurnAttempt
    ) -> Mapping[str, Environment]:
        """Return the environments by workspace, the default one first, and bind the attempt to them."""
        turn = claim.turn
        environments = await self._environment_resolver.resolve_all(
            claim.agent, turn.conversation, person=turn.asker, revision=claim.conversation.revision
        )
        attempt.approvals.bind_environments(environments, next(iter(environments.values())))
        attempt.set_file_saver(partial(save_files, self._environment_resolver, environments.values(), turn))
        return environments

    async def _tool_context(
        self, claim: ClaimedTurn, environments: Mapping[str, Environment], memory: TurnMemory | None
    ) -> ToolContext:
        return ToolContext(
            turn=claim.turn,
            environment=next(iter(environments.values())),
            environment_resolver=self._environment_resolver,
            jobs=self._jobs,
            files=self._file_collector,
            schedules=self._schedules,
            memory=memory,
            agent=claim.agent,
            agent_files=self._agent_files,
            skills=await self._agent_files.list_skills(claim.turn.account, claim.conversation.revision),
            environments=environments,
            interruption=claim.interruption,
            publish_transient=partial(self._stream.publish_transient, account=claim.turn.account),
        )


def _tools(
    attempt: TurnAttempt,
    agent: Record,
    context: ToolContext,
    external: ExternalTools,
    attachments: FetchedAttachments,
) -> ToolExecutor:
    return ToolExecutor(
        context,
        begin=attempt.begin,
        check=attempt.ensure_held,
        allowed=agent_config(agent).tool_names,
        show_step=attempt.show_step,
        external=external.tools,
        hooks=external.hooks,
        answer_files=attachments.answers,
    )


def _turn_input(
    claim: ClaimedTurn, attempt: TurnAttempt, prompt: TurnPrompt, attachments: FetchedAttachments
) -> TurnInput:
    turn = claim.turn
    request = ClientRequest.parse(turn.request)
    return TurnInput(
        turn=turn.id,
        conversation=turn.conversation,
        attempt=turn.attempt,
        trigger=input_trigger(turn),
        input=prompt.render_input(replace(turn, context=without_added(turn.context))),
        agent=prompt.agent,
        history=claim.past,
        checkpoint=turn.paused,
        decisions=claim.decisions,
        read_steering=attempt.take_steering,
        attachment_lines=attachments.lines,
        images=attachments.images,
        answer_images=attachments.answer_images,
        output_format=request.format_for(prompt.agent),
        required_tool=request.required_tool,
        required_after=request.required_after,
        client_tools=frozenset(request.tools_by_name),
        single_calls=request.single_calls,
    )
