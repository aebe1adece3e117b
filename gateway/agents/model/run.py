"""Run one attempt at one turn: request the model, yield its text, execute its calls, within the limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cached_property, partial

from delivery.database.clock import utc_now
from gateway.agents.clients import messages as stored
from gateway.agents.clients.errors import ModelCallError, ModelContextExceeded
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.clients.port import ModelClient, ModelQuery
from gateway.agents.clients.text import repair_surrogates
from gateway.agents.model import compaction, failures, images, output_formats, prompts, tool_calls
from gateway.agents.model import state as states
from gateway.agents.model.state import AgentState, encode, repair_response
from gateway.agents.port import (
    AgentEvent,
    ApprovalRequired,
    Checkpoint,
    Delta,
    Finished,
    MessageCompleted,
    ModelRequestEnded,
    ModelRequestStarting,
    Tools,
    TurnInput,
    Usage,
)

CONTEXT_RETRY_SHARE, LATER_RETRY_SHARE = 0.9, 0.5
"""Shares of a refused size to which the conversation is compacted the first time, and each later time."""

LEAST_REFUSED_BUDGET = 500
"""Tokens: a model that refuses less cannot hold the instructions and tools."""

MAX_UNUSABLE_RESPONSES = 2

Events = AsyncGenerator[AgentEvent, None]


class ModelRun:
    """One attempt with one model, or with the models of a failover list."""

    def __init__(self, *, turn_input: TurnInput, tools: Tools, client: ModelClient) -> None:
        self._turn_input = turn_input
        self._limits = turn_input.agent.limits
        self._client = client
        self._state = initial_state(turn_input)
        self._response: ChatMessage | None = None
        self._responding_model = ""
        self._has_progress = False
        self._compacted = False
        self._summary = ""
        self._context_exceeded = False
        self._refused_tokens = 0
        self._unusable_responses = 0
        self._format = self._enforced_format = turn_input.output_format
        self._instructions = output_formats.add_format(turn_input.agent.instructions, self._format)
        self._specs = tuple(tools.list())
        is_due = self._state.usage.requests == turn_input.required_after
        self._required = tool_calls.required_tools(self._specs, turn_input) if is_due else ()
        shown = self._limits.context_tokens * compaction.BYTES_PER_TOKEN // 4
        names = [tool.name for tool in self._specs]
        self._executor = tool_calls.CallExecutor(tools, names=names, max_chars=shown)
        self._refused_budget: int | None = None

    @cached_property
    def _fixed_tokens(self) -> int:
        """The tokens of instructions and tools, estimated when a long conversation or a budget asks."""
        return compaction.estimate_text_tokens(self._instructions) + sum(
            compaction.estimate_text_tokens(f"{tool.name}{tool.description}{dict(tool.schema)}")
            for tool in self._specs
        )

    @property
    def _token_budget(self) -> int:
        """The tokens available for the conversation; 0 means no limit."""
        if self._refused_budget is not None:
            return self._refused_budget
        return token_budget(self._limits.context_tokens, self._fixed_tokens)

    async def run(self) -> Events:
        """Run to the end; raises AgentError, and errors of tools unchanged."""
        try:
            async with aclosing(self._run_turn()) as events:
                async for event in events:
                    for shown in output_formats.shown_events(event, self._format):
                        yield shown
        except ModelCallError as error:
            raise failures.to_agent_error(error) from error

    async def _run_turn(self) -> Events:
        if self._turn_input.trigger == "compact":
            async with aclosing(self._compact_on_request()) as events:
                async for event in events:
                    yield event
            return
        answer = self._final_text()
        if answer is not None:
            yield MessageCompleted(text=answer)
        elif not self._take_decisions():
            yield self._approval_required()
            return
        while answer is None:
            self._state.waiting = await self._execute_calls() or None
            if self._state.waiting:
                yield self._approval_required()
                return
            async with aclosing(self._next_response()) as events:
                async for event in events:
                    yield event
            answer = self._final_text()
        yield Finished(output=answer, history=self._state.to_entry(), usage=self._usage())

    def _final_text(self) -> str | None:
        return output_formats.bare_json(self._state.final_text(), self._format)

    def _take_decisions(self) -> bool:
        """Note the decisions about the calls this turn paused for; returns False while one is undecided."""
        waiting, decisions = self._state.waiting, self._turn_input.decisions
        if waiting is None:
            return True
        if not all(call["tool_call_id"] in decisions for call in waiting):
            return False
        for call in waiting:
            self._state.add_note(tool_calls.decision_note(call, decisions[call["tool_call_id"]]))
        self._state.waiting = None
        return True

    async def _execute_calls(self) -> list[ChatPart]:
        """Execute the calls of the last response; returns those that wait for an approval."""
        calls = stored.unanswered_calls(self._state.messages)
        if not calls:
            return []
        results, waiting = await self._executor.execute(calls, self._turn_input.decisions)
        if results:
            self._add_to_request(results)
            self._has_progress = True
        return waiting

    def _add_to_request(self, parts: list[ChatPart]) -> None:
        """Add parts to the request that follows the last response."""
        messages = self._state.messages
        if messages and messages[-1]["kind"] == "request":
            messages[-1] = stored.with_parts(messages[-1], [*messages[-1]["parts"], *parts])
        else:
            messages.append(stored.request(parts))

    async def _next_response(self) -> Events:
        """Save progress, compact if necessary, and request the model once."""
        received = await self._add_steering()
        if self._has_progress or received:
            yield self._checkpoint()
        self._has_progress = False
        if self._needs_compaction():
            async with aclosing(self._compact()) as events:
                async for event in events:
                    yield event
        self._response = None
        try:
            async with aclosing(self._request(self._query(), self._estimate_request)) as events:
                async for event in events:
                    yield event
        except ModelCallError as error:
            if not self._can_change(error):
                raise
        async with aclosing(self._handle_end()) as events:
            async for event in events:
                yield event

    def _can_change(self, error: ModelCallError) -> bool:
        """Change what the model refused; returns False if it is to blame for something else, or again."""
        if isinstance(error, ModelContextExceeded):
            return self._shrink_budget()
        if self._enforced_format and output_formats.is_refused(error):
            self._enforced_format = None
            return True
        if self._required and tool_calls.is_choice_refused(error):
            self._required = ()
            return True
        if not images.are_refused(error, self._state.messages):
            return False
        self._state.messages = images.replace_images(self._state.messages)
        return True

    async def _add_steering(self) -> bool:
        """Add messages that arrived since to the next request; returns whether there were any."""
        said = await self._turn_input.read_steering()
        new = said[self._state.received :]
        if new:
            self._add_to_request([stored.user_prompt(repair_surrogates(text)) for text in new])
            self._state.received = len(said)
        return bool(new)

    def _query(self) -> ModelQuery:
        return ModelQuery(
            messages=self._state.sent_messages(),
            earlier=self._state.sent_turns(),
            instructions=self._instructions,
            tools=self._required or self._specs,
            output_format=self._enforced_format,
            requires_call=bool(self._required),
        )

    def _estimate_request(self) -> int:
        return self._fixed_tokens + self._state.estimate_tokens()

    async def _request(self, query: ModelQuery, estimate_tokens: Callable[[], int]) -> Events:
        """Request the model and yield its text; reports the duration, also of a failed request."""
        failures.check_request_limit(self._limits, self._state.usage)
        yield ModelRequestStarting(estimate_tokens=estimate_tokens)
        begun, self._response = utc_now(), None
        try:
            async with aclosing(self._client.ask(query)) as reply:
                async for item in reply:
                    if isinstance(item, str):
                        yield Delta(text=repair_surrogates(item))
                    else:
                        self._response = item
        except Exception as error:
            yield ModelRequestEnded(started_at=begun, ended_at=utc_now(), error=type(error).__name__)
            raise
        response = self._received()
        self._responding_model = response.get("model_name") or ""
        self._state.usage.add(response)
        yield ModelRequestEnded(started_at=begun, ended_at=utc_now(), usage=self._usage())
        failures.check_token_limits(self._limits, self._state.usage)

    def _received(self) -> ChatMessage:
        """Return the response to the last request."""
        if self._response is None:
            raise RuntimeError("the model client ended without a response")
        return self._response

    async def _handle_end(self) -> Events:
        """Handle the response to the last request, or compact the conversation that was too long for it."""
        if self._response is not None:
            self._context_exceeded = self._compacted = False
            found = self._handle_response(self._response)
        elif self._context_exceeded:
            found = self._compact()
        else:
            return
        async with aclosing(found) as events:
            async for event in events:
                yield event

    async def _handle_response(self, response: ChatMessage) -> Events:
        """Yield and save a response before its calls are executed."""
        if self._turn_input.single_calls:
            response = tool_calls.keep_first_call(response)
        calls, self._required = stored.calls_of(response), ()
        repair_response(response)
        tool_calls.ensure_unique_ids(calls, self._state.messages)
        self._state.messages.append(response)
        text = stored.response_text(response)
        if text:
            yield MessageCompleted(text=text if calls else states.shown_text(response))
        feedback = None if calls else output_formats.find_fault(response, self._format)
        if feedback:
            self._request_output(response, feedback)
            return
        self._unusable_responses = 0
        tool_calls.check_repeated_calls(self._state, calls, limit=self._limits.repeated_calls)
        if calls:
            yield self._checkpoint()

    def _request_output(self, response: ChatMessage, feedback: str) -> None:
        """Tell the model why its response is unusable; raises AgentError if it was told before."""
        reason = response.get("finish_reason")
        self._unusable_responses += 1
        is_final = reason in {"content_filter", "length"} or stored.is_refusal(response)
        if is_final or self._unusable_responses > MAX_UNUSABLE_RESPONSES:
            raise failures.unusable_answer(response, feedback)
        self._add_to_request(
            [{"content": feedback, "timestamp": stored.timestamp(), "part_kind": "retry-feedback"}]
        )
        self._has_progress = True

    def _needs_compaction(self) -> bool:
        if self._compacted:
            return False
        tokens, least = self._state.estimate_tokens(), least_budget(self._limits.context_tokens)
        if self._refused_budget is None and tokens <= least * compaction.START_SHARE:
            return False  # whatever the instructions and tools take
        return bool(self._token_budget) and tokens > self._token_budget * compaction.START_SHARE

    def _shrink_budget(self) -> bool:
        """Use less than the refused size as the limit: the model's window is smaller than configured.

        Returns False if the last compaction did not make the conversation smaller, or nothing is left to try.
        """
        tokens = self._state.estimate_tokens()
        if self._context_exceeded and self._compacted and tokens >= self._refused_tokens:
            return False
        if self._refused_budget is None:
            refused = int(tokens * CONTEXT_RETRY_SHARE)
            self._refused_budget = min(refused, self._token_budget or refused)
        else:
            self._refused_budget = int(self._refused_budget * LATER_RETRY_SHARE)
        self._context_exceeded, self._refused_tokens = True, tokens
        return self._refused_budget >= LEAST_REFUSED_BUDGET

    async def _compact_on_request(self) -> Events:
        """Replace all but the last exchange by a summary, and end the turn."""
        place = compaction.find_last_exchange(self._state.messages)
        said = compaction.REQUESTED_NOTICE if place else compaction.NOTHING_NOTICE
        if place:
            async with aclosing(self._compact(place, said)) as events:
                async for event in events:
                    yield event
        else:
            yield MessageCompleted(text=said)
        yield Finished(output=said, history=self._state.to_entry() if place else None, usage=self._usage())

    async def _compact(self, place: int | None = None, notice: str = compaction.COMPACTION_NOTICE) -> Events:
        """Replace the part of the conversation before a place by the model's own summary."""
        messages = self._state.messages
        while True:
            room = self._token_budget
            cut = compaction.find_cut(messages, int(room * compaction.TAIL_SHARE)) if place is None else place
            try:
                async with aclosing(self._summarise(messages[:cut], room)) as events:
                    async for event in events:
                        yield event
            except ModelContextExceeded:
                if not self._shrink_budget():
                    raise
            else:
                break
        prompt = compaction.current_request(messages, cut)
        self._state.messages = compaction.compacted_history(
            self._summary, self._state.all_notes, prompt, messages[cut:], room
        )
        is_first, self._compacted = not self._compacted, True
        if is_first:
            yield MessageCompleted(text=notice)
        yield self._checkpoint()

    async def _summarise(self, messages: list[ChatMessage], room: int) -> Events:
        """Ask the model for a summary, piece by piece; it is empty if there are no messages."""
        self._summary = ""
        transcript = compaction.transcript(messages)
        for piece in compaction.chunks(transcript, int(room * compaction.CHUNK_SHARE)):
            asked = stored.request(
                [stored.user_prompt(compaction.summary_prompt(piece, self._summary, room))]
            )
            estimate = partial(compaction.estimate_tokens, [asked])
            async with aclosing(self._request(ModelQuery(messages=[asked]), estimate)) as events:
                async for event in events:
                    if isinstance(event, ModelRequestStarting | ModelRequestEnded):
                        yield event
            self._summary = repair_surrogates(stored.response_text(self._received()))

    def _approval_required(self) -> ApprovalRequired:
        calls = tool_calls.pending_calls(self._state.waiting or ())
        return ApprovalRequired(calls=calls, state=encode(self._state), usage=self._usage())

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(state=encode(self._state), usage=self._usage())

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
        seen = (*turn_input.images, *turn_input.answer_images)
        saved.messages[known:] = images.restore_images(saved.messages[known:], seen)
        return saved
    progress = states.initial_state(turn_input.history)
    if turn_input.trigger == "compact":
        return progress
    content = images.prompt(prompts.render_prompt(turn_input), turn_input.images)
    progress.messages.append(stored.request([stored.user_prompt(content)]))
    if turn_input.trigger == "job":
        progress.add_note(prompts.render_job_note(turn_input))
    return progress


def token_budget(context_tokens: int, fixed: int) -> int:
    """Return the tokens available for the conversation beside instructions and tools; 0 means no limit."""
    return max(context_tokens - fixed, least_budget(context_tokens))


def least_budget(context_tokens: int) -> int:
    """Return the tokens available for the conversation beside any instructions and tools."""
    return context_tokens // 4
