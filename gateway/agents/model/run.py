"""One attempt at one turn: asks the model, says what it says, carries out its calls, within its limits."""

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
from gateway.agents.model.state import (
    Progress,
    dump,
    dump_history,
    load,
    load_history,
    mend_response,
    text_of,
)
from gateway.agents.model.text import mend
from gateway.agents.port import Asked, Delta, Finished, Requested, Said, Saved, Step, Tools, Usage, Work

Output = str | DeferredToolRequests
Run = AgentRun[None, Output]
Emit = Callable[[Step], Awaitable[None]]

REFUSED = 0.9
RETRIES = AgentRetries(tools=5, output=2)


class Performance:
    """One attempt. `emit` hands a step over and returns when the consumer is ready for the next one."""

    def __init__(self, *, work: Work, tools: Tools, model: Model, emit: Emit) -> None:
        self._work = work
        self._limits = work.persona.limits
        self._model = model
        self._emit = emit
        self._progress = begin(work)
        self._answered_by = ""
        self._fresh = False
        self._compacted = False
        self._refused = False
        shown = self._limits.context_tokens * compaction.BYTES_PER_TOKEN // 4
        self._agent: Agent[None, Output] = Agent(
            output_type=[str, DeferredToolRequests],
            instructions=work.persona.instructions or None,
            tools=tool_calls.offer(tools, most_chars=shown),
            retries=RETRIES,
        )
        fixed = compaction.tokens_of(work.persona.instructions) + sum(
            compaction.tokens_of(f"{tool.name}{tool.description}{dict(tool.schema)}")
            for tool in tools.offered()
        )
        self._room = room_for(self._limits.context_tokens, fixed)

    async def play(self) -> None:
        """Perform to the end; raises AgentError, and what the tools raise as it is."""
        try:
            await self._play()
        except failures.EXPLAINED as error:
            raise failures.explain(error, self._limits, self._progress.usage) from error

    async def _play(self) -> None:
        if (answer := self._progress.answer()) is not None:
            await self._emit(Said(text=answer))
            await self._finish(answer)
            return
        results, undecided = self._decisions()
        if undecided is not None:
            await self._ask(undecided)
            return
        output = None
        while output is None:
            output = await self._run(results)
            results = None
            if output is None:
                await self._compact()
        if isinstance(output, DeferredToolRequests):
            await self._ask(output)
        else:
            await self._finish(output)

    def _decisions(self) -> tuple[DeferredToolResults | None, DeferredToolRequests | None]:
        """Return what people decided about the calls this turn paused for, or the calls if they have not."""
        requests = self._progress.conversation.deferred_tool_requests
        if requests is None:
            return None, None
        results = tool_calls.decided(requests, self._work.decisions)
        if results is None:
            return None, requests
        for part in requests.approvals:
            self._progress.note(tool_calls.verdict(part, self._work.decisions[part.tool_call_id]))
        self._progress.conversation.deferred_tool_requests = None
        return results, None

    async def _run(self, results: DeferredToolResults | None) -> Output | None:
        """Run as `_run_once` does; a model that refuses images is asked once more without them."""
        try:
            return await self._run_once(results)
        except ModelHTTPError as error:
            if not images.are_refused(error, self._progress.messages):
                raise
        self._progress.messages = images.hidden(self._progress.messages)
        return await self._run_once(results)

    async def _run_once(self, results: DeferredToolResults | None) -> Output | None:
        """Let pydantic-ai run until it is done, or return None when the model cannot hold more."""
        try:
            async with self._agent.iter(
                message_history=self._progress.messages,
                deferred_tool_results=results,
                model=self._model,
                usage=self._progress.usage,
                usage_limits=failures.usage_limits(self._limits),
                infer_name=False,
            ) as run:
                return await self._follow(run)
        except ModelContextWindowExceededError:
            if self._refused:
                raise
            self._refused = True
            # The model holds less than is configured, or our estimate is low: go by what it refused.
            refused = int(compaction.estimate(self._progress.messages) * REFUSED)
            self._room = min(refused, self._room or refused)
            return None

    async def _follow(self, run: Run) -> Output | None:
        async for node in run:
            if Agent.is_model_request_node(node):
                if await self._is_full(run, node):
                    return None
                await self._stream(run, node)
            elif Agent.is_call_tools_node(node):
                await self._take(run, node)
        if run.result is None:
            raise RuntimeError("the run ended without a result")
        self._progress.messages = run.result.all_messages()
        return run.result.output

    async def _is_full(self, run: Run, node: ModelRequestNode[None, Output]) -> bool:
        """Save what was reached before a model call, and say whether the model cannot hold it."""
        heard = await self._listen(node)
        reached = [*run.all_messages(), node.request]
        if self._fresh or heard:
            self._progress.messages = reached
            await self._emit(Saved(state=dump(self._progress), usage=self._usage()))
        self._progress.messages = reached
        if self._compacted or not self._room:
            return False
        return compaction.estimate(reached) > self._room * compaction.START_AT

    async def _listen(self, node: ModelRequestNode[None, Output]) -> bool:
        """Put what people have said meanwhile into the next request; say whether there was anything."""
        said = await self._work.hear()
        new = said[self._progress.heard :]
        if new:
            told = [UserPromptPart(content=mend(text)) for text in new]
            node.request = dataclasses.replace(node.request, parts=[*node.request.parts, *told])
            self._progress.heard = len(said)
        return bool(new)

    async def _stream(self, run: Run, node: ModelRequestNode[None, Output]) -> None:
        async with self._requesting(), node.stream(run.ctx) as stream:
            async for event in stream:
                if (
                    isinstance(event, PartStartEvent)
                    and isinstance(event.part, TextPart)
                    and event.part.content
                ):
                    await self._emit(Delta(text=mend(event.part.content)))
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    await self._emit(Delta(text=mend(event.delta.content_delta)))
        self._fresh = True
        self._refused = self._compacted = False

    @asynccontextmanager
    async def _requesting(self) -> AsyncIterator[None]:
        """Tell how long a request to the model took, also when it failed."""
        begun = utc_now()
        try:
            yield
        except Exception as error:
            await self._emit(Requested(begun=begun, ended=utc_now(), failed=type(error).__name__))
            raise
        await self._emit(Requested(begun=begun, ended=utc_now()))

    async def _take(self, run: Run, node: CallToolsNode[None, Output]) -> None:
        """Say and save a response before its calls are carried out."""
        response = node.model_response
        if self._fresh:
            self._answered_by = response.model_name or ""
            mend_response(response)
            tool_calls.make_unique(response.tool_calls, run.all_messages()[:-1])
            if text := text_of(response):
                await self._emit(Said(text=text))
            tool_calls.guard(self._progress, response.tool_calls, most=self._limits.repeated_calls)
            if response.tool_calls:
                self._progress.messages = run.all_messages()
                await self._emit(Saved(state=dump(self._progress), usage=self._usage()))
        async with node.stream(run.ctx) as events:
            async for _ in events:
                pass
        self._fresh = True

    async def _compact(self) -> None:
        """Replace the older part of the conversation by what the model itself writes about it."""
        messages, room = self._progress.messages, self._room
        place = compaction.cut(messages, int(room * compaction.TAIL))
        prompt = compaction.standing_prompt(messages, place)
        summary = await self._summarise(compaction.transcript(messages[:place]))
        self._progress.messages = compaction.remember(
            summary, self._progress.notes, prompt, messages[place:], room
        )
        self._compacted = True
        await self._emit(Said(text=compaction.NOTICE))
        await self._emit(Saved(state=dump(self._progress), usage=self._usage()))

    async def _summarise(self, transcript: str) -> str:
        room, summary = self._room, ""
        for piece in compaction.pieces(transcript, int(room * compaction.CHUNK)):
            writer: Agent[None, str] = Agent(output_type=str)
            async with self._requesting():
                written = await writer.run(
                    compaction.question(piece, summary, room),
                    model=self._model,
                    usage=self._progress.usage,
                    usage_limits=failures.usage_limits(self._limits),
                    infer_name=False,
                )
            summary = written.output
        return summary

    async def _ask(self, requests: DeferredToolRequests) -> None:
        self._progress.conversation.deferred_tool_requests = requests
        await self._emit(Asked(calls=tool_calls.asked_calls(requests), state=dump(self._progress)))

    async def _finish(self, output: str) -> None:
        history = dump_history(self._progress)
        await self._emit(Finished(output=output, history=history, usage=self._usage()))

    def _usage(self) -> Usage:
        used = self._progress.usage
        return Usage(
            model=self._answered_by,
            requests=used.requests,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
        )


def begin(work: Work) -> Progress:
    """Return where an attempt starts: at this turn's own progress, else at the conversation's history."""
    saved = load(work.saved)
    if saved is not None:
        saved.messages = images.shown_again(saved.messages, work.images)
        return saved
    progress = load_history(work.history)
    content = images.prompt(prompts.prompt_of(work), work.images)
    progress.messages.append(ModelRequest(parts=[UserPromptPart(content=content)]))
    if work.trigger == "job":
        progress.note(prompts.job_note(work))
    return progress


def room_for(context_tokens: int, fixed: int) -> int:
    """Return how many tokens the conversation may take beside instructions and tools; 0 means any number."""
    return max(context_tokens - fixed, context_tokens // 4)
