"""Run a compiled LangGraph graph as an agent. Uses the graph's methods only, and imports no library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.agents.custom.runner import CustomAgent
from gateway.agents.custom.turn import AgentTurn
from gateway.agents.port import AgentError

STEPS_PER_REQUEST = 2
"""Steps of a graph for each model request that the limits allow: one for the model, one for its tools."""

UNLIMITED_STEPS = 10_000


def is_graph(value: object) -> bool:
    """Return whether a value is a compiled graph."""
    return callable(getattr(value, "astream", None)) and callable(getattr(value, "get_graph", None))


def from_graph(name: str, graph: Any) -> CustomAgent:
    """Return the agent of a compiled graph whose state has `messages`."""

    async def run(turn: AgentTurn) -> None:
        await _GraphRun(name, turn).run(graph)

    return CustomAgent(name, run)


class _GraphRun:
    """One run of a graph: what its models write is streamed, its last message is the answer."""

    def __init__(self, name: str, turn: AgentTurn) -> None:
        self._name = name
        self._turn = turn
        self._streamed = ""
        self._message: str | None = None

    async def run(self, graph: Any) -> None:
        """Run the graph from its start; raises AgentError for a graph without a text at its end."""
        given, state = self._given(), {}
        requests = self._turn.limits.requests
        config = {
            "configurable": {"thread_id": self._turn.id},
            "recursion_limit": STEPS_PER_REQUEST * requests + 1 if requests else UNLIMITED_STEPS,
        }
        async for mode, value in graph.astream(
            {"messages": given}, config, stream_mode=["messages", "values"]
        ):
            if mode == "messages":
                await self._stream(value[0])
            else:
                state = value
        self._count_usage(self._messages_of(state)[len(given) :])
        await self._turn.finish(self._answer(state))

    def _given(self) -> list[dict[str, str]]:
        turn = self._turn
        system = [{"role": "system", "content": turn.instructions}] if turn.instructions else []
        past = [{"role": one.role, "content": one.text} for one in turn.history]
        return [*system, *past, {"role": "user", "content": turn.prompt}]

    async def _stream(self, message: Any) -> None:
        """Stream what a model writes; a message with another id begins a new one."""
        text = _text_of(message) if getattr(message, "type", "") in {"ai", "AIMessageChunk"} else ""
        if not text:
            return
        if self._message is not None and self._message != message.id:
            await self._turn.message()
        self._message = message.id
        await self._turn.say(text)

    def _messages_of(self, state: Any) -> list[Any]:
        messages = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
        if not isinstance(messages, list) or not messages:
            raise AgentError(f"The graph {self._name!r} has no list `messages` in its state.")
        return messages

    def _answer(self, state: Any) -> str:
        if isinstance(state, Mapping) and state.get("__interrupt__"):
            raise AgentError(
                f"The graph {self._name!r} called interrupt(): call the turn's tool ask_person instead, "
                "or a tool that needs an approval."
            )
        return _text_of(self._messages_of(state)[-1])

    def _count_usage(self, messages: Iterable[Any]) -> None:
        for message in messages:
            used = getattr(message, "usage_metadata", None)
            if used:
                self._turn.add_usage(
                    model=str((message.response_metadata or {}).get("model_name") or ""),
                    input_tokens=int(used.get("input_tokens") or 0),
                    output_tokens=int(used.get("output_tokens") or 0),
                )


def _text_of(message: Any) -> str:
    """Return the text of a message; its content is a text, or a list of texts and blocks."""
    content = message.content
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(
        block if isinstance(block, str) else str(block.get("text") or "")
        for block in blocks
        if isinstance(block, str | Mapping)
    )
