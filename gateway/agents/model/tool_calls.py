"""Adapt tools to pydantic-ai, pass decisions as results, and detect repeated calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from pydantic_ai import (
    ApprovalRequired,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    Tool,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from gateway.agents.model.state import AgentState
from gateway.agents.model.text import repair_surrogates, shorten
from gateway.agents.port import AgentError, ApprovalDecision, PendingToolCall, Tools, ToolSpec

MIN_UNIQUE_LENGTH = 16
MAX_ID_LENGTH = 40
MAX_SHOWN_ARGS = 200


def as_tools(tools: Tools, *, max_chars: int) -> list[Tool[None]]:
    """Return the turn's tools for pydantic-ai; results longer than `most_chars` (0: any) lose their middle.

    They run one after another: they share a workspace, and a re-run must meet them in the same order.
    """
    return [_tool(spec, tools, max_chars) for spec in tools.list()]


def _tool(spec: ToolSpec, tools: Tools, max_chars: int) -> Tool[None]:
    async def call(context: RunContext[None], /, **args: Any) -> str:
        name, identity = spec.name, context.tool_call_id or ""
        if not context.tool_call_approved and await tools.needs_approval(name, args, call=identity):
            raise ApprovalRequired
        result = await tools.call(name, args, call=identity)
        return shorten(repair_surrogates(result.content), max_chars)

    return Tool.from_schema(
        call, spec.name, spec.description, dict(spec.schema), takes_ctx=True, sequential=True
    )


def pending_calls(requests: DeferredToolRequests) -> tuple[PendingToolCall, ...]:
    """Return the calls that wait for approval."""
    return tuple(
        PendingToolCall(id=part.tool_call_id, name=part.tool_name, args=part.args_as_dict())
        for part in requests.approvals
    )


def deferred_results(
    requests: DeferredToolRequests, decisions: Mapping[str, ApprovalDecision]
) -> DeferredToolResults | None:
    """Return the decisions in pydantic-ai's format, or None while a call is undecided."""
    waiting = [part.tool_call_id for part in requests.approvals]
    if not all(identity in decisions for identity in waiting):
        return None
    results = DeferredToolResults()
    for identity in waiting:
        decision = decisions[identity]
        results.approvals[identity] = (
            ToolApproved() if decision.approved else ToolDenied(denial_message(decision))
        )
    return results


def denial_message(decision: ApprovalDecision) -> str:
    """Return the message to the model about a denied call."""
    comment = f" They said: {decision.comment}" if decision.comment else ""
    return f"{decision.by} denied this call; it was not executed.{comment} Do not try it again as it was."


def decision_note(part: ToolCallPart, decision: ApprovalDecision) -> str:
    """Return a decision as a note that outlives compaction."""
    word = "approved" if decision.approved else "denied"
    comment = f' ("{decision.comment}")' if decision.comment else ""
    return f"{decision.by} {word} {part.tool_name} {part.args_as_json_str()[:MAX_SHOWN_ARGS]}{comment}"


def ensure_unique_ids(calls: Iterable[ToolCallPart], messages: Sequence[ModelMessage]) -> None:
    """Give calls ids of our own where the server's may come back: checkpoints and approvals hang on them.

    Some servers number the calls of each response from zero, and some repeat an id.
    """
    seen = {part.tool_call_id for message in messages for part in _calls_of(message)}
    for part in calls:
        if isinstance(part.args, dict):
            part.args = json.dumps(part.args)
        identity = part.tool_call_id
        fits = MIN_UNIQUE_LENGTH <= len(identity) <= MAX_ID_LENGTH
        if not fits or identity in seen:
            part.tool_call_id = f"call_{uuid4().hex[:24]}"
        seen.add(part.tool_call_id)


def _calls_of(message: ModelMessage) -> Sequence[ToolCallPart]:
    return message.tool_calls if isinstance(message, ModelResponse) else ()


def check_repeated_calls(state: AgentState, calls: Iterable[ToolCallPart], *, limit: int) -> None:
    """Count calls that repeat the one before; raises AgentError at the `most`-th in a row (0: any number)."""
    for part in calls:
        digest = _digest(part)
        state.repeats = state.repeats + 1 if digest == state.last_call else 1
        state.last_call = digest
        if limit and state.repeats >= limit:
            raise AgentError(
                f"This turn was stopped: the model called {part.tool_name} {state.repeats} times in a row "
                f"with the same arguments ({part.args_as_json_str()[:MAX_SHOWN_ARGS]}). Ask in another way, "
                "or raise limits.repeated_calls of the agent."
            )


def _digest(part: ToolCallPart) -> str:
    try:
        args = json.dumps(part.args_as_dict(), sort_keys=True)
    except ValueError:
        args = part.args_as_json_str()
    return hashlib.sha256(f"{part.tool_name}\n{args}".encode()).hexdigest()[:32]
