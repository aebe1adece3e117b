"""Execute the calls of a response, pass decisions as results, and detect repeated calls."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

from gateway.agents.clients import messages as stored
from gateway.agents.clients.errors import ModelCallError, ModelRequestRefused
from gateway.agents.clients.messages import ChatMessage, ChatPart
from gateway.agents.clients.text import repair_surrogates, shorten
from gateway.agents.model import images
from gateway.agents.model.state import AgentState
from gateway.agents.port import (
    ANY_TOOL,
    AgentError,
    AgentImage,
    ApprovalDecision,
    PendingToolCall,
    Tools,
    ToolSpec,
    TurnInput,
)

MIN_UNIQUE_LENGTH = 16
MAX_ID_LENGTH = 40
MAX_SHOWN_ARGS = 200
MAX_BROKEN_CALLS = 5
_CHOICE_WORDS = ("tool_choice", "function_calling_config")


class CallExecutor:
    """Executes the calls of one attempt; results longer than `max_chars` (0: any) lose their middle.

    They run one after another: they share a workspace, and a re-run must meet them in the same order.
    """

    def __init__(self, tools: Tools, *, names: Sequence[str], max_chars: int) -> None:
        self._tools = tools
        self._names = names
        self._max_chars = max_chars
        self._broken: Counter[str] = Counter()
        self._viewed: list[AgentImage] = []
        self._shown = 0

    async def execute(
        self, calls: Iterable[ChatPart], decisions: Mapping[str, ApprovalDecision]
    ) -> tuple[list[ChatPart], list[ChatPart]]:
        """Execute calls; returns their results with the images to show, and the calls that wait."""
        results: list[ChatPart] = []
        waiting: list[ChatPart] = []
        for call in calls:
            result = await self._execute(call, decisions.get(call["tool_call_id"]))
            if result is None:
                waiting.append(call)
            else:
                results.append(result)
        if self._viewed:
            results.append(stored.user_prompt(images.viewed(self._viewed, self._shown)))
            self._shown += len(self._viewed)
            self._viewed = []
        return results, waiting

    async def _execute(self, call: ChatPart, decision: ApprovalDecision | None) -> ChatPart | None:
        """Return the result of a call, or None if it needs an approval."""
        if decision is not None and not decision.approved:
            return stored.tool_return(call, denial_message(decision), "denied")
        name, identity = call["tool_name"], call["tool_call_id"]
        if name not in self._names and decision is None:
            known = ", ".join(sorted(self._names)) or "none"
            return self._refuse(call, f"Unknown tool name: {name!r}. Available tools: {known}")
        try:
            args = stored.arguments(call)
        except ValueError as error:
            return self._refuse(call, f"The arguments are not a valid JSON object: {error}")
        self._broken.pop(name, None)
        if await self._tools.needs_approval(name, args, call=identity):
            return None
        result = await self._tools.call(name, args, call=identity)
        self._viewed += result.images
        return stored.tool_return(call, shorten(repair_surrogates(result.content), self._max_chars))

    def _refuse(self, call: ChatPart, why: str) -> ChatPart:
        """Return a result that says what is wrong with a call; raises AgentError after several in a row."""
        name = call["tool_name"]
        self._broken[name] += 1
        if self._broken[name] > MAX_BROKEN_CALLS:
            raise AgentError(
                f"The model gave no usable answer: it called {name[:MAX_SHOWN_ARGS]} {self._broken[name]} "
                "times in a row with an unknown name or with arguments that are not JSON"
            )
        return stored.tool_return(call, repair_surrogates(why), "failed")


def required_tools(specs: Sequence[ToolSpec], turn_input: TurnInput) -> Sequence[ToolSpec]:
    """Return the tools of which one is required; none if the agent lost them.

    They are offered alone. A vendor's "any tool" means any that is offered, so the agent's own would meet a
    requirement of the client's. llama.cpp and proxies ignore a choice that names a tool.
    """
    is_any = turn_input.required_tool == ANY_TOOL
    wanted = turn_input.client_tools if is_any else {turn_input.required_tool}
    return tuple(one for one in specs if one.name in wanted)


def is_choice_refused(error: ModelCallError) -> bool:
    """Return whether a server refused to require a tool, as models do that think before they answer."""
    return isinstance(error, ModelRequestRefused) and any(word in error.detail for word in _CHOICE_WORDS)


def keep_first_call(response: ChatMessage) -> ChatMessage:
    """Return a response without the calls after its first one: the model can call again."""
    first = stored.calls_of(response)[:1]
    others = (part for part in response["parts"] if part["part_kind"] != "tool-call" or part in first)
    return stored.with_parts(response, list(others))


def pending_calls(calls: Sequence[ChatPart]) -> tuple[PendingToolCall, ...]:
    """Return calls that wait for approval as the port describes them."""
    return tuple(
        PendingToolCall(id=call["tool_call_id"], name=call["tool_name"], args=stored.arguments(call))
        for call in calls
    )


def denial_message(decision: ApprovalDecision) -> str:
    """Return the message to the model about a denied call."""
    comment = f" They said: {decision.comment}" if decision.comment else ""
    return f"{decision.by} denied this call; it was not executed.{comment} Do not try it again as it was."


def decision_note(call: ChatPart, decision: ApprovalDecision) -> str:
    """Return a decision as a note that outlives compaction."""
    word = "approved" if decision.approved else "denied"
    comment = f' ("{decision.comment}")' if decision.comment else ""
    return f"{decision.by} {word} {call['tool_name']} {_shown_args(call)}{comment}"


def ensure_unique_ids(calls: Sequence[ChatPart], messages: Sequence[ChatMessage]) -> None:
    """Give calls ids of our own where the server's may come back: checkpoints and approvals hang on them.

    Some servers number the calls of each response from zero, and some repeat an id.
    """
    if not calls:
        return
    seen = {part["tool_call_id"] for message in messages for part in stored.calls_of(message)}
    for part in calls:
        if isinstance(part.get("args"), dict):
            part["args"] = stored.arguments_text(part)
        identity = part["tool_call_id"]
        fits = MIN_UNIQUE_LENGTH <= len(identity) <= MAX_ID_LENGTH
        if not fits or identity in seen:
            part["tool_call_id"] = f"call_{uuid4().hex[:24]}"
        seen.add(part["tool_call_id"])


def check_repeated_calls(state: AgentState, calls: Iterable[ChatPart], *, limit: int) -> None:
    """Count calls that repeat the one before; raises AgentError at the `limit`-th in a row (0: none)."""
    for part in calls:
        digest = _digest(part)
        state.repeats = state.repeats + 1 if digest == state.last_call else 1
        state.last_call = digest
        if limit and state.repeats >= limit:
            raise AgentError(
                f"This turn was stopped: the model called {part['tool_name']} {state.repeats} times in a row "
                f"with the same arguments ({_shown_args(part)}). Ask in another way, "
                "or raise limits.repeated_calls of the agent."
            )


def _shown_args(call: ChatPart) -> str:
    return stored.arguments_text(call)[:MAX_SHOWN_ARGS]


def _digest(part: ChatPart) -> str:
    try:
        args = json.dumps(stored.arguments(part), sort_keys=True)
    except ValueError:
        args = stored.arguments_text(part)
    return hashlib.sha256(f"{part['tool_name']}\n{args}".encode("utf-8", "replace")).hexdigest()[:32]
