"""Run a pydantic-ai Agent as an agent of the gateway: with the turn's tools, saved after each response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pydantic_ai
from pydantic_ai.agent import AbstractAgent, AgentRun, CallToolsNode, ModelRequestNode
from pydantic_ai.exceptions import AgentRunError, UsageLimitExceeded, UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits
from pydantic_core import to_json

from gateway.agents import history
from gateway.agents.clients import messages as stored
from gateway.agents.clients.messages import ChatMessage
from gateway.agents.clients.pydantic_ai_client import to_call_error
from gateway.agents.custom.runner import CustomAgent
from gateway.agents.custom.turn import AgentTurn
from gateway.agents.model import failures
from gateway.agents.port import AgentError, ToolSpec, TurnLimits

LibraryAgent = AbstractAgent[Any, Any]

pydantic_ai.BANNER_ENABLED = False


def is_library_agent(value: object) -> bool:
    """Return whether a value is an agent of pydantic-ai."""
    return isinstance(value, AbstractAgent)


def from_library_agent(name: str, agent: LibraryAgent) -> CustomAgent:
    """Return an agent that runs one of pydantic-ai; its own dependencies (`deps`) are the turn."""

    async def run(turn: AgentTurn) -> None:
        try:
            await _LibraryRun(agent, turn).run()
        except UsageLimitExceeded as error:
            raise AgentError(f"This turn stopped at a limit of the agent {name!r}: {error}") from error
        except UserError as error:
            raise AgentError(f"The agent {name!r} cannot run: {error}") from error
        except AgentRunError as error:
            raise failures.to_agent_error(to_call_error(name, error)) from error

    return CustomAgent(name, run)


class _LibraryRun:
    """One run, which continues from the messages that an earlier attempt saved."""

    def __init__(self, agent: LibraryAgent, turn: AgentTurn) -> None:
        self._agent = agent
        self._turn = turn
        self._earlier = _earlier_messages(turn)
        self._saved = _parse(turn.messages)
        self._responses = sum(isinstance(one, ModelResponse) for one in self._saved)
        self._seen = 0

    async def run(self) -> None:
        """Run the agent to its end."""
        turn = self._turn
        async with self._agent.iter(
            None if self._saved else _prompt(turn),
            message_history=[*self._earlier, *self._saved] or None,
            instructions=turn.instructions or None,
            deps=turn,
            toolsets=[FunctionToolset([_tool(spec, turn) for spec in turn.tools])],
            usage_limits=_usage_limits(turn.limits),
            model_settings=ModelSettings(timeout=turn.limits.step_timeout),
        ) as run:
            async for node in run:
                if isinstance(node, ModelRequestNode):
                    await self._request(run, node)
                elif isinstance(node, CallToolsNode):
                    await self._take_response(run, node.model_response)
        result = run.result
        if result is None:
            raise AgentError("The agent ended without a result.")
        output = result.output
        text = output if isinstance(output, str) else to_json(output).decode()
        await turn.finish(text, _dump(self._own(run)))

    async def _request(self, run: AgentRun[Any, Any], node: ModelRequestNode[Any, Any]) -> None:
        """Save the results of tools, add messages that came since, and stream the model's answer."""
        new = await self._turn.new_messages()
        node.request.parts = [*node.request.parts, *(UserPromptPart(content=text) for text in new)]
        if new or self._own(run):
            await self._turn.save(_dump([*self._own(run), node.request]))
        async with node.stream(run.ctx) as stream:
            async for event in stream:
                text = _text_of(event)
                if text:
                    await self._turn.say(text)

    async def _take_response(self, run: AgentRun[Any, Any], response: ModelResponse) -> None:
        """Save a response before its calls are executed; the last one is saved with the turn's end."""
        is_saved = self._seen < self._responses and response in self._saved
        self._seen += 1
        if is_saved:
            return
        self._turn.add_usage(
            model=response.model_name or "",
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
        )
        if response.tool_calls:
            await self._turn.message()
            own = self._own(run)
            await self._turn.save(_dump(own if own and own[-1] is response else [*own, response]))

    def _own(self, run: AgentRun[Any, Any]) -> list[ModelMessage]:
        return run.all_messages()[len(self._earlier) :]


def _earlier_messages(turn: AgentTurn) -> list[ModelMessage]:
    """Return the conversation before this turn; calls without a result are closed."""
    entries = history.effective(turn.turn_input.history)
    messages = [cast("ChatMessage", message) for entry in entries for message in entry.messages]
    return _parse(stored.repaired(messages))


def _parse(messages: Sequence[Any]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_python(list(messages))


def _dump(messages: Sequence[ModelMessage]) -> list[Any]:
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json", exclude_none=True)
    return dumped


def _prompt(turn: AgentTurn) -> str | Sequence[UserContent]:
    images = turn.turn_input.images
    if not images:
        return turn.prompt
    return [turn.prompt, *(BinaryContent(data=one.content, media_type=one.media_type) for one in images)]


def _tool(spec: ToolSpec, turn: AgentTurn) -> Tool[Any]:
    async def call(context: RunContext[Any], **args: Any) -> str:
        result = await turn.call_tool(spec.name, args, call=context.tool_call_id or "")
        return result.content

    return Tool.from_schema(call, spec.name, spec.description, dict(spec.schema), takes_ctx=True)


def _usage_limits(limits: TurnLimits) -> UsageLimits:
    return UsageLimits(
        request_limit=limits.requests or None,
        input_tokens_limit=limits.input_tokens or None,
        output_tokens_limit=limits.output_tokens or None,
        total_tokens_limit=limits.total_tokens or None,
    )


def _text_of(event: object) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""
