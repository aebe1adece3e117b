"""What a custom agent gets: one turn with its input, its tools, and steps that are executed once."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from gateway.agents.clients.text import repair_surrogates
from gateway.agents.custom.progress import (
    AgentMessages,
    PastMessage,
    load_progress,
    past_messages,
    turn_messages,
)
from gateway.agents.history import HistoryEntry
from gateway.agents.installed_calls import TimeLimitReached, await_installed
from gateway.agents.model.prompts import render_prompt
from gateway.agents.model.tool_calls import denial_message
from gateway.agents.port import (
    AgentError,
    AgentEvent,
    ApprovalRequired,
    Checkpoint,
    Delta,
    Finished,
    MessageCompleted,
    PendingToolCall,
    ToolResult,
    Tools,
    ToolSpec,
    TurnInput,
    TurnLimits,
    Usage,
)

_CURRENT: ContextVar[AgentTurn] = ContextVar("dovecote_turn")

ROUNDS_TO_BEGIN = 10
"""Rounds of the event loop in which calls may begin, or the function end, before a turn pauses."""

Publish = Callable[[Sequence[AgentEvent]], Awaitable[None]]
"""Hand events to the gateway, and wait until it has handled them."""

Fail = Callable[[BaseException], None]
"""End the attempt with an error, whatever the agent does with it."""


def current_turn() -> AgentTurn:
    """Return the turn that runs in this task: for tools of a framework. Raises LookupError outside a turn."""
    return _CURRENT.get()


class AgentTurn:
    """One attempt at one turn.

    After a crash, and after a wait for an approval, a function runs again from its start with the same input.
    Calls of tools, steps and messages that were completed before are not repeated: they are recognised by
    what they were called with, and by how often. Everything else the function does is done again.
    """

    def __init__(
        self, agent: str, turn_input: TurnInput, tools: Tools, *, publish: Publish, fail: Fail
    ) -> None:
        self._agent = agent
        self._turn_input = turn_input
        self._tools = tools
        self._publish = publish
        self._fail = fail
        self._progress = load_progress(turn_input.checkpoint, agent)
        self._is_continued = bool(self._progress.messages)
        self._position = len(self._progress.messages)
        self._received = self._progress.received if self._is_continued else 0
        self._counts: Counter[str] = Counter()
        self._partial: list[str] = []
        self._said: list[str] = []
        self._working = 0
        self._idle = asyncio.Event()
        self._waiting: dict[str, PendingToolCall] = {}
        self._prompt = render_prompt(turn_input)
        _CURRENT.set(self)

    @property
    def id(self) -> str:
        """The turn's id."""
        return self._turn_input.turn

    @property
    def conversation(self) -> str:
        """The conversation's id."""
        return self._turn_input.conversation

    @property
    def attempt(self) -> int:
        """Which attempt at the turn this is, from 1."""
        return self._turn_input.attempt

    @property
    def trigger(self) -> str:
        """What began the turn: `message`, or `job` for the result of a background job."""
        return self._turn_input.trigger

    @property
    def input(self) -> str:
        """The message, or the report of a job, as it came."""
        return self._turn_input.input

    @property
    def prompt(self) -> str:
        """The input for a model: with lines about files; a job's report is marked as untrusted."""
        return self._prompt

    @property
    def instructions(self) -> str:
        """The record's instructions, with what the gateway adds about memory, the room and files."""
        return self._turn_input.agent.instructions

    @property
    def limits(self) -> TurnLimits:
        """The limits of the agent's record."""
        return self._turn_input.agent.limits

    @property
    def turn_input(self) -> TurnInput:
        """The whole input, with images and the conversation's stored history."""
        return self._turn_input

    @property
    def history(self) -> Sequence[PastMessage]:
        """The texts of the conversation's earlier turns, oldest first."""
        return past_messages(self._turn_input.history)

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that this turn may call: built-in and external ones."""
        return self._tools.list()

    @property
    def messages(self) -> AgentMessages:
        """The messages that `save` stored in an earlier attempt."""
        return self._progress.messages

    async def call(self, tool: str, /, **args: Any) -> ToolResult:
        """Call a tool once; see `call_tool`."""
        return await self.call_tool(tool, args)

    async def call_tool(self, tool: str, args: Mapping[str, Any], *, call: str = "") -> ToolResult:
        """Call a tool once, and return its result, also of a failure.

        If a person must approve the call, the turn pauses here and the function is cancelled; it runs again
        when the decision is there. `call` is the model's id of the call, if it has one.
        """
        identity = self._key("call", call, tool, json.dumps(dict(args), sort_keys=True, default=str))
        decision = self._turn_input.decisions.get(identity)
        if decision is not None and not decision.approved:
            return ToolResult(ok=False, content=denial_message(decision), detail={"denied": True})
        async with self._at_work():
            try:
                if not await self._tools.needs_approval(tool, args, call=identity):
                    return await self._tools.call(tool, args, call=identity)
            except Exception as error:
                self._fail(error)  # such as a lost lease: a framework could treat it as a tool's failure
                raise
            self._waiting[identity] = PendingToolCall(id=identity, name=tool, args=dict(args))
        return await self._pause(identity)

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run a function once in this turn, and return its result: a later attempt gets the saved one.

        The result must be JSON. The function is cancelled after `limits.step_timeout`.
        """
        key = self._key("step", name)
        if key in self._progress.steps:
            return json.loads(self._progress.steps[key])
        seconds = self.limits.step_timeout
        async with self._at_work():
            try:
                value = await await_installed(function(), seconds=seconds or None)
            except TimeLimitReached as error:
                raise AgentError(
                    f"step {name!r} took longer than limits.step_timeout ({seconds:g} s)"
                ) from error
            saved = self._progress.add_step(key, name, value)
            await self._publish([self._checkpoint()])
        return saved

    async def say(self, text: str) -> None:
        """Stream a further part of the current message."""
        text = repair_surrogates(text)
        self._partial.append(text)
        if text and not self._was_said():
            await self._publish([Delta(text=text)])

    async def message(self, text: str | None = None) -> None:
        """Complete the current message, or send a whole one; the function's result is the last message."""
        if text is not None and self._partial:
            await self.message()
        whole = "".join(self._partial) if text is None else repair_surrogates(text)
        self._partial = []
        if not whole:
            return
        repeated = self._was_said()
        self._said.append(whole)
        if not repeated:
            self._progress.said = list(self._said)
            await self._publish([MessageCompleted(text=whole), self._checkpoint()])

    async def new_messages(self) -> Sequence[str]:
        """Return the messages that came since the last call; the turn answers them (queue mode `steer`)."""
        received = await self._turn_input.read_steering()
        new = received[self._received :]
        self._received = len(received)
        return tuple(new)

    def add_usage(
        self, *, model: str = "", requests: int = 1, input_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        """Count requests to a model, for budgets and the list of usage."""
        used = self._progress.usage
        self._progress.usage = Usage(
            model=model or used.model,
            requests=used.requests + requests,
            input_tokens=used.input_tokens + input_tokens,
            output_tokens=used.output_tokens + output_tokens,
        )

    async def save(self, messages: AgentMessages) -> None:
        """Save this turn's messages in their stored form; a later attempt continues from them."""
        self._progress.messages = tuple(messages)
        self._progress.received = self._received
        self._is_continued = True
        self._position = len(messages)
        self._counts.clear()
        await self._publish([self._checkpoint()])

    async def finish(self, output: str | None, messages: AgentMessages | None = None) -> None:
        """End the turn; without an output, what was said is the output. Raises AgentError without either."""
        output = None if output is None else repair_surrogates(output)
        partial = "".join(self._partial)
        if output is not None and partial and partial != output:
            await self.message()
        last = output or partial
        ending: list[AgentEvent] = [MessageCompleted(text=last)] if last else []
        if last:
            self._said.append(last)
        if not self._said:
            raise AgentError(
                f"The agent {self._agent!r} gave no answer: it must return a text or send a message."
            )
        entry = self._entry() if messages is None else HistoryEntry(messages=tuple(messages))
        ending.append(Finished(output=self._said[-1], history=entry, usage=self._progress.usage))
        await self._publish(ending)

    def _was_said(self) -> bool:
        """Return whether an earlier attempt has completed the current message."""
        return not self._is_continued and len(self._said) < len(self._progress.said)

    def _key(self, *parts: str) -> str:
        """Return a key that is the same for the same use in every attempt."""
        text = json.dumps([self._position, *parts])
        self._counts[text] += 1
        digest = hashlib.sha256(f"{self._counts[text]}\n{text}".encode("utf-8", "replace")).hexdigest()
        return f"{parts[0]}-{digest[:24]}"

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        """Count what runs; when nothing runs any more, well or not, a call that waits pauses the turn."""
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._idle.set()

    async def _pause(self, identity: str) -> ToolResult:
        """Wait until nothing else runs; then the first call that waits pauses the turn for all of them."""
        while True:
            if await self._is_idle() and next(iter(self._waiting)) == identity:
                await self._publish([self._approval_required()])
            self._idle.clear()
            await self._idle.wait()

    async def _is_idle(self) -> bool:
        for _ in range(ROUNDS_TO_BEGIN):
            if self._working:
                return False
            await asyncio.sleep(0)  # calls of the same gather() begin
        return not self._working

    def _entry(self) -> HistoryEntry:
        messages = self._progress.messages or turn_messages(self._agent, self._prompt, self._said)
        return HistoryEntry(messages=tuple(messages))

    def _state(self) -> bytes:
        return self._progress.encode(self._agent, self._entry())

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(state=self._state(), usage=replace(self._progress.usage))

    def _approval_required(self) -> ApprovalRequired:
        used = replace(self._progress.usage)
        return ApprovalRequired(calls=tuple(self._waiting.values()), state=self._state(), usage=used)
