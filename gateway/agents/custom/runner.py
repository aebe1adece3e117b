"""Run a function as an agent: it runs in a task, and what it does becomes the events of the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.agents.custom.turn import AgentTurn
from gateway.agents.installed_calls import is_cancelled
from gateway.agents.port import Agent, AgentError, AgentEvent, ApprovalRequired, Finished, Tools, TurnInput

log = structlog.get_logger(__name__)

STOP_SECONDS = 10.0
"""Seconds for a cancelled function to end."""

CANCEL_INTERVAL = 1.0
"""Seconds between two cancellations: a framework may swallow one."""

TurnFunction = Callable[[AgentTurn], Awaitable[None]]
"""Run a turn to its end, which is `AgentTurn.finish`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    events: Sequence[AgentEvent]
    handled: asyncio.Future[None]


class CustomAgent(Agent):
    """An agent of an installed package."""

    def __init__(self, name: str, function: TurnFunction) -> None:
        self._name = name
        self._function = function

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run one attempt as the port specifies; the function is cancelled when the iteration ends."""
        queue: asyncio.Queue[_Published | BaseException] = asyncio.Queue()

        async def publish(events: Sequence[AgentEvent]) -> None:
            handled = asyncio.get_running_loop().create_future()
            await queue.put(_Published(events=events, handled=handled))
            await handled

        task = asyncio.create_task(self._run_function(turn_input, tools, publish, queue.put_nowait))
        try:
            async with aclosing(_events(queue)) as events:
                async for event in events:
                    yield event
        finally:
            await self._stop(task)

    async def _run_function(
        self,
        turn_input: TurnInput,
        tools: Tools,
        publish: Callable[[Sequence[AgentEvent]], Awaitable[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        try:
            turn = AgentTurn(self._name, turn_input, tools, publish=publish, fail=fail)
            await self._function(turn)
            fail(AgentError(f"The agent {self._name!r} ended without an answer."))
        except asyncio.CancelledError as error:
            if is_cancelled():
                fail(error)
                raise
            fail(AgentError(f"The agent {self._name!r} raised CancelledError, but nothing cancelled it."))
        except BaseException as error:
            fail(error)
            if not isinstance(error, Exception):
                raise

    async def _stop(self, task: asyncio.Task[None]) -> None:
        """Cancel the function and wait for its end; one that does not end is left, with a log line."""
        waited = 0.0
        while not task.done() and waited < STOP_SECONDS:
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_INTERVAL)
            waited += CANCEL_INTERVAL
        if not task.done():
            log.error("agent.not_stopped", agent=self._name, seconds=waited)


async def _events(queue: asyncio.Queue[_Published | BaseException]) -> AsyncGenerator[AgentEvent, None]:
    """Yield what the function publishes until the attempt ends; raises what it raised."""
    while True:
        item = await queue.get()
        if isinstance(item, BaseException):
            raise item
        for event in item.events:
            yield event
            if isinstance(event, Finished | ApprovalRequired):
                return
        if not item.handled.done():
            item.handled.set_result(None)


def from_function(name: str, function: Callable[[AgentTurn], Awaitable[object]]) -> CustomAgent:
    """Return the agent of an async function that returns its answer, or None after it sent messages."""

    async def run(turn: AgentTurn) -> None:
        await turn.finish(_require_text(name, await function(turn)))

    return CustomAgent(name, run)


def from_generator(name: str, function: Callable[[AgentTurn], AsyncIterable[object]]) -> CustomAgent:
    """Return the agent of an async generator that yields the parts of its answer."""

    async def run(turn: AgentTurn) -> None:
        async for part in function(turn):
            await turn.say(_require_text(name, part) or "")
        await turn.finish(None)

    return CustomAgent(name, run)


def _require_text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise AgentError(f"The agent {name!r} answered with {type(value).__name__}, not with a text.")
