"""Run one attempt at one turn: request the model, emit its text, execute its calls, within the limits."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pydantic_ai import (
    Agent,
    AgentRetries,
    AgentRun,
    CallToolsNode,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRequestNode,
)
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError
from pydantic_ai.messages import (
    ModelRequest,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model

from delivery.database.clock import utc_now
from gateway.agents.model import compaction, failures, images, prompts, tool_calls
from gateway.agents.model import state as states
from gateway.agents.model.state import AgentState, encode, repair_response, response_text
from gateway.agents.model.text import repair_surrogates
from gateway.agents.port import (
    AgentEvent,
    ApprovalRequired,
    Checkpoint,
    Delta,
    Finished,
    MessageCompleted,
    ModelRequestEnded,
    Tools,
    TurnInput,
    Usage,
)

Output = str | DeferredToolRequests
Run = AgentRun[None, Output]
Emit = Callable[[AgentEvent], Awaitable[None]]

CONTEXT_RETRY_SHARE = 0.9
RETRIES = AgentRetries(tools=5, output=2)


class ModelRun:
    """One attempt. `emit` hands a step over and returns when the consumer is ready for the next one."""

    def __init__(self, *, turn_input: TurnInput, tools: Tools, model: Model, emit: Emit) -> None:
        self._turn_input = turn_input
        self._limits = turn_input.agent.limits
        self._model = model
        self._emit = emit
        self._state = initial_state(turn_input)
        self._responding_model = ""
        self._has_new_response = False
        self._compacted = False
        self._context_exceeded = False
        shown = self._limits.context_tokens * compaction.BYTES_PER_TOKEN // 4
        self._agent: Agent[None, Output] = Agent(
            output_type=[str, DeferredToolRequests],
            instructions=turn_input.agent.instructions or None,
            tools=tool_calls.as_tools(tools, max_chars=shown),
            retries=RETRIES,
        )
        fixed = compaction.estimate_text_tokens(turn_input.agent.instructions) + sum(
            compaction.estimate_text_tokens(f"{tool.name}{tool.description}{dict(tool.schema)}")
            for tool in tools.list()
        )
        self._token_budget = token_budget(self._limits.context_tokens, fixed)

    async def run(self) -> None:
        """Run to the end; raises AgentError, and errors of tools unchanged."""
        try:
            await self._run_turn()
        except failures.MODEL_RUN_ERRORS as error:
            raise failures.to_agent_error(error, self._limits, self._state.usage) from error

    async def _run_turn(self) -> None:
        if (answer := self._state.final_text()) is not None:
            await self._emit(MessageCompleted(text=answer))
            await self._finish(answer)
            return
        results, undecided = self._decisions()
        if undecided is not None:
            await self._request_approval(undecided)
            return
        output = None
        while output is None:
            output = await self._run_with_image_fallback(results)
            results = None
            if output is None:
                await self._compact()
        if isinstance(output, DeferredToolRequests):
            await self._request_approval(output)
        else:
            await self._finish(output)

    def _decisions(self) -> tuple[DeferredToolResults | None, DeferredToolRequests | None]:
        """Return the decisions about the calls this turn paused for, or the calls that are undecided."""
        requests = self._state.conversation.deferred_tool_requests
        if requests is None:
            return None, None
        results = tool_calls.deferred_results(requests, self._turn_input.decisions)
        if results is None:
            return None, requests
        for part in requests.approvals:
            self._state.add_note(
                tool_calls.decision_note(part, self._turn_input.decisions[part.tool_call_id])
            )
        self._state.conversation.deferred_tool_requests = None
        return results, None

    async def _run_with_image_fallback(self, results: DeferredToolResults | None) -> Output | None:
        """Run as `_run_once` does; if a model refuses images, it is requested once more without them."""
        try:
            return await self._run_once(results)
        except ModelHTTPError as error:
            if not images.are_refused(error, self._state.messages):
                raise
        self._state.messages = images.replace_images(self._state.messages)
        return await self._run_once(results)

    async def _run_once(self, results: DeferredToolResults | None) -> Output | None:
        """Let pydantic-ai run to its end; returns None when the context window is exceeded."""
        try:
            async with self._agent.iter(
                message_history=self._state.messages,
                deferred_tool_results=results,
                model=self._model,
                usage=self._state.usage,
                usage_limits=failures.usage_limits(self._limits),
                infer_name=False,
            ) as run:
                return await self._follow(run)
        except ModelContextWindowExceededError:
            if self._context_exceeded:
                raise
            self._context_exceeded = True
            # The model's window is smaller than configured, or the estimate is too low: use the refused size.
            refused = int(self._state.estimate_tokens(self._state.messages) * CONTEXT_RETRY_SHARE)
            self._token_budget = min(refused, self._token_budget or refused)
            return None

    async def _follow(self, run: Run) -> Output | None:
        async for node in run:
            if Agent.is_model_request_node(node):
                if await self._needs_compaction(run, node):
                    return None
                await self._stream(run, node)
            elif Agent.is_call_tools_node(node):
                await self._handle_response(run, node)
        if run.result is None:
            raise RuntimeError("the run ended without a result")
        self._state.messages = run.result.all_messages()
        return run.result.output

    async def _needs_compaction(self, run: Run, node: ModelRequestNode[None, Output]) -> bool:
        """Save progress before a model call; returns whether the context window is exceeded."""
        heard = await self._add_steering(node)
        reached = [*run.all_messages(), node.request]
        if self._has_new_response or heard:
            self._state.messages = reached
            await self._emit(Checkpoint(state=encode(self._state), usage=self._usage()))
        self._state.messages = reached
        if self._compacted or not self._token_budget:
            return False
        return self._state.estimate_tokens(reached) > self._token_budget * compaction.START_SHARE

    async def _add_steering(self, node: ModelRequestNode[None, Output]) -> bool:
        """Add messages that arrived meanwhile to the next request; returns whether there were any."""
        said = await self._turn_input.read_steering()
        new = said[self._state.heard :]
        if new:
            parts = [UserPromptPart(content=repair_surrogates(text)) for text in new]
            node.request = dataclasses.replace(node.request, parts=[*node.request.parts, *parts])
            self._state.heard = len(said)
        return bool(new)

    async def _stream(self, run: Run, node: ModelRequestNode[None, Output]) -> None:
        async with self._timed_request(), node.stream(run.ctx) as stream:
            async for event in stream:
                if (
                    isinstance(event, PartStartEvent)
                    and isinstance(event.part, TextPart)
                    and event.part.content
                ):
                    await self._emit(Delta(text=repair_surrogates(event.part.content)))
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    await self._emit(Delta(text=repair_surrogates(event.delta.content_delta)))
        self._has_new_response = True
        self._context_exceeded = self._compacted = False

    @asynccontextmanager
    async def _timed_request(self) -> AsyncIterator[None]:
        """Report the duration of a model request, also of a failed one."""
        begun = utc_now()
        try:
            yield
        except Exception as error:
            await self._emit(
                ModelRequestEnded(started_at=begun, ended_at=utc_now(), error=type(error).__name__)
            )
            raise
        await self._emit(ModelRequestEnded(started_at=begun, ended_at=utc_now()))

    async def _handle_response(self, run: Run, node: CallToolsNode[None, Output]) -> None:
        """Emit and save a response before its calls are executed."""
        response = node.model_response
        if self._has_new_response:
            self._responding_model = response.model_name or ""
            repair_response(response)
            tool_calls.ensure_unique_ids(response.tool_calls, run.all_messages()[:-1])
            if text := response_text(response):
                await self._emit(MessageCompleted(text=text))
            tool_calls.check_repeated_calls(
                self._state, response.tool_calls, limit=self._limits.repeated_calls
            )
            if response.tool_calls:
                self._state.messages = run.all_messages()
                await self._emit(Checkpoint(state=encode(self._state), usage=self._usage()))
        async with node.stream(run.ctx) as events:
            async for _ in events:
                pass
        self._has_new_response = True

    async def _compact(self) -> None:
        """Replace the older part of the conversation by the model's own summary."""
        messages, room = self._state.messages, self._token_budget
        place = compaction.find_cut(messages, int(room * compaction.TAIL_SHARE))
        prompt = compaction.current_request(messages, place)
        summary = await self._summarise(compaction.transcript(messages[:place]))
        self._state.messages = compaction.compacted_history(
            summary, self._state.all_notes, prompt, messages[place:], room
        )
        self._compacted = True
        await self._emit(MessageCompleted(text=compaction.COMPACTION_NOTICE))
        await self._emit(Checkpoint(state=encode(self._state), usage=self._usage()))

    async def _summarise(self, transcript: str) -> str:
        room, summary = self._token_budget, ""
        for piece in compaction.chunks(transcript, int(room * compaction.CHUNK_SHARE)):
            writer: Agent[None, str] = Agent(output_type=str)
            async with self._timed_request():
                written = await writer.run(
                    compaction.summary_prompt(piece, summary, room),
                    model=self._model,
                    usage=self._state.usage,
                    usage_limits=failures.usage_limits(self._limits),
                    infer_name=False,
                )
            summary = written.output
        return summary

    async def _request_approval(self, requests: DeferredToolRequests) -> None:
        self._state.conversation.deferred_tool_requests = requests
        await self._emit(
            ApprovalRequired(calls=tool_calls.pending_calls(requests), state=encode(self._state))
        )

    async def _finish(self, output: str) -> None:
        await self._emit(Finished(output=output, history=self._state.to_entry(), usage=self._usage()))

    def _usage(self) -> Usage:
        used = self._state.usage
        return Usage(
            model=self._responding_model,
            requests=used.requests,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
        )


def initial_state(turn_input: TurnInput) -> AgentState:
    """Return where an attempt starts: at this turn's own progress, else at the conversation's history."""
    saved = states.resume(turn_input.checkpoint, turn_input.history)
    if saved is not None:
        known = len(saved.earlier.messages)
        restored = images.restore_images(saved.messages[known:], turn_input.images)
        saved.messages = [*saved.messages[:known], *restored]
        return saved
    progress = states.initial_state(turn_input.history)
    content = images.prompt(prompts.render_prompt(turn_input), turn_input.images)
    progress.messages.append(ModelRequest(parts=[UserPromptPart(content=content)]))
    if turn_input.trigger == "job":
        progress.add_note(prompts.render_job_note(turn_input))
    return progress


def token_budget(context_tokens: int, fixed: int) -> int:
    """Return the tokens available for the conversation beside instructions and tools; 0 means no limit."""
    return max(context_tokens - fixed, context_tokens // 4)
