"""The hooks of one turn: asked one after another, each with what the one before it changed."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    Finished,
    MessageCompleted,
    PendingToolCall,
    ToolResult,
    Tools,
    TurnInput,
)
from gateway.records.tools.http_requests import Point
from gateway.store.turns.turns import Turn
from gateway.tools.hooks.answer import Hook, HookAnswer, HookCall, HookFailed

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookDecision:
    """What the hooks decided: what they were asked, with their changes, or why not."""

    call: HookCall
    denied: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True)
class TurnHooks:
    """Asks hooks about one attempt; a call of a tool is asked about once."""

    turn: Turn | None = None
    hooks: Sequence[Hook] = ()
    _asked: dict[str, HookDecision] = field(default_factory=dict)

    def _at(self, point: Point) -> Sequence[Hook]:
        return [one for one in self.hooks if point in one.points]

    async def before_tool(self, name: str, args: Mapping[str, Any], call: str) -> HookDecision:
        """Return whether a call may run, with which arguments."""
        if call not in self._asked:
            self._asked[call] = await self._ask("before_tool", call, tool=name, args=dict(args), call=call)
        return self._asked[call]

    async def after_tool(
        self, name: str, args: Mapping[str, Any], call: str, result: ToolResult
    ) -> ToolResult:
        """Return the result as the model gets it."""
        notes = self._asked[call].notes if call in self._asked else ()
        decided = await self._ask(
            "after_tool", call, tool=name, args=dict(args), call=call, ok=result.ok, result=result.content
        )
        if decided.denied is not None:
            return denied_result(decided.denied)
        content = "\n".join([decided.call.result or "", *notes, *decided.notes])
        if content == result.content:
            return result
        detail = result.detail if decided.call.result == result.content else {}
        return replace(result, content=content, detail=detail)

    def with_changes(self, calls: Sequence[PendingToolCall]) -> Sequence[PendingToolCall]:
        """Return calls with the arguments that hooks gave them."""
        return [
            replace(one, args=self._asked[one.id].call.args or {}) if one.id in self._asked else one
            for one in calls
        ]

    def wrap(self, agent: Agent) -> Agent:
        """Return an agent whose turns the hooks are asked about."""
        return HookedAgent(agent, self) if self._at("before_turn") or self._at("after_turn") else agent

    async def before_turn(self, text: str) -> HookDecision:
        """Return whether a turn may run, with which input."""
        return await self._ask("before_turn", "turn", input=text)

    async def after_turn(self, output: str) -> HookDecision:
        """Return whether an answer may be sent, and as which text."""
        return await self._ask("after_turn", "turn", output=output)

    async def _ask(self, point: Point, subject: str, **about: Any) -> HookDecision:
        asked, turn = self._at(point), self.turn
        if turn is None:
            return HookDecision(call=HookCall.model_construct(**about))
        call = HookCall(
            id=_message_id(turn.id, point, subject),
            point=point,
            account=turn.account,
            agent=turn.agent,
            conversation=turn.conversation,
            turn=turn.id,
            attempt=turn.attempt,
            **about,
        )
        notes: list[str] = []
        for one in asked:
            answer = await _answer(one, call)
            if answer.decision == "deny":
                log.info("hook.denied", hook=one.name, point=point, turn=turn.id, tool=call.tool)
                return HookDecision(call=call, denied=answer.reason or f"The rule {one.name!r} denies it.")
            call = _changed(call, answer)
            notes += [answer.note] if answer.note else []
        return HookDecision(call=call, notes=tuple(notes))


def denied_result(reason: str) -> ToolResult:
    """Return the result of a call that a hook denied."""
    return ToolResult(ok=False, content=f"A rule denied this call: {reason}", detail={"denied": True})


def _changed(call: HookCall, answer: HookAnswer) -> HookCall:
    """Return what the next hook is asked: with the changes that fit the point."""
    changes = {
        name: value
        for name in ("args", "input", "result", "output")
        if (value := getattr(answer, name)) is not None and getattr(call, name) is not None
    }
    if call.point == "after_tool":
        changes.pop("args", None)
    return call.model_copy(update=changes)


async def _answer(hook: Hook, call: HookCall) -> HookAnswer:
    try:
        return await hook.ask(call)
    except HookFailed as error:
        log.warning("hook.unanswered", hook=hook.name, point=call.point, turn=call.turn, error=str(error))
        reason = f"The rule {hook.name!r} could not be asked, and then nothing is allowed."
        return HookAnswer(decision=hook.on_failure, reason=reason)


def _message_id(turn: str, point: str, subject: str) -> str:
    return "hook_" + hashlib.sha256(f"{turn}\n{point}\n{subject}".encode()).hexdigest()[:26]


class HookedAgent(Agent):
    """An agent whose turns begin, and whose answers are sent, as the hooks allow."""

    def __init__(self, inner: Agent, hooks: TurnHooks) -> None:
        self._inner = inner
        self._hooks = hooks

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run the turn; a message is held back until it is known whether it is the answer."""
        decided = await self._hooks.before_turn(turn_input.input)
        if decided.denied is not None:
            raise AgentError(decided.denied)
        text = "\n\n".join([decided.call.input or "", *decided.notes])
        held: MessageCompleted | None = None
        async with aclosing(self._inner.run(replace(turn_input, input=text), tools)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    event, held = await self._allowed(event, held)  # noqa: PLW2901
                if held is not None:
                    yield held
                held = event if isinstance(event, MessageCompleted) else None
                if held is None:
                    yield event

    async def _allowed(
        self, end: Finished, held: MessageCompleted | None
    ) -> tuple[Finished, MessageCompleted | None]:
        """Return the end and its message as they may be sent; raises AgentError if they may not."""
        decided = await self._hooks.after_turn(end.output)
        if decided.denied is not None:
            raise AgentError(decided.denied)
        output = "\n\n".join([decided.call.output or "", *decided.notes])
        if output == end.output:
            return end, held
        return replace(end, output=output), MessageCompleted(text=output)
