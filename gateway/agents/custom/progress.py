"""What a custom agent's turn has done so far, as it is saved between attempts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from gateway.agents import history
from gateway.agents.clients import messages as stored
from gateway.agents.clients.messages import ChatMessage
from gateway.agents.history import HistoryEntry, TurnProgress, UnreadableHistory
from gateway.agents.port import AgentError, Usage

MAX_STEP_BYTES = 256 * 1024
"""Bytes of JSON of one step's result."""

MAX_STEPS_BYTES = 4 * 1024 * 1024
"""Bytes of JSON of all results of a turn's steps: they are saved with each step."""

AgentMessages = Sequence[Mapping[str, Any]]
"""Messages in their stored form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMessage:
    """A message of an earlier turn; `role` is `user` or `assistant`."""

    role: str
    text: str


@dataclass(kw_only=True)
class CustomProgress:
    """A turn's progress. `steps` are results of durable steps by key; `said` the completed messages.

    `messages` are the turn's own messages in their stored form, for agents that continue from them; others
    run again from the start. `received` counts the messages that the turn received while it ran.
    """

    steps: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    messages: AgentMessages = ()
    received: int = 0
    usage: Usage = field(default_factory=Usage)

    def add_step(self, key: str, name: str, value: object) -> Any:
        """Keep the result of a step, and return it as later attempts get it; raises AgentError."""
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AgentError(f"the result of step {name!r} cannot be saved as JSON: {error}") from error
        if len(text) > MAX_STEP_BYTES:
            raise AgentError(
                f"the result of step {name!r} has {len(text)} bytes of JSON, {MAX_STEP_BYTES} are allowed: "
                "write it to a file, and return its path"
            )
        if sum(map(len, self.steps.values())) + len(text) > MAX_STEPS_BYTES:
            raise AgentError(
                f"the results of this turn's steps exceed {MAX_STEPS_BYTES} bytes: write them to files"
            )
        self.steps[key] = text
        return json.loads(text)

    def encode(self, agent: str, entry: HistoryEntry) -> bytes:
        """Return the progress of the agent of this name as bytes."""
        state = {
            "custom": agent,
            "steps": self.steps,
            "said": self.said,
            "continues": bool(self.messages),
            "heard": self.received,
            "usage": asdict(self.usage),
        }
        return history.encode_progress(TurnProgress(entry=entry, state=state))


def load_progress(saved: bytes | None, agent: str) -> CustomProgress:
    """Return saved progress, or an empty one if there is none of this agent; raises AgentError."""
    try:
        progress = history.decode_progress(saved)
    except UnreadableHistory as error:
        raise AgentError(str(error)) from error
    if progress is None or progress.state.get("custom") != agent:
        return CustomProgress()
    state = progress.state
    return CustomProgress(
        steps=dict(state["steps"]),
        said=list(state["said"]),
        messages=progress.entry.messages if state["continues"] else (),
        received=int(state["heard"]),
        usage=Usage(**state["usage"]),
    )


def turn_messages(agent: str, prompt: str, said: Sequence[str]) -> list[ChatMessage]:
    """Return a turn as messages: what it was asked, and what it said."""
    asked = stored.request([stored.user_prompt(prompt)])
    if not said:
        return [asked]
    answer = stored.response(agent, provider="custom", url="")
    answer["parts"] = [{"part_kind": "text", "content": "\n\n".join(said)}]
    return [asked, answer]


def past_messages(entries: Sequence[HistoryEntry]) -> list[PastMessage]:
    """Return the texts of a conversation's earlier turns, without tool calls."""
    found: list[PastMessage] = []
    for entry in history.effective(entries):
        for message in entry.messages:
            role = "user" if message.get("kind") == "request" else "assistant"
            text = _text_of(cast("ChatMessage", message))
            if text:
                found.append(PastMessage(role=role, text=text))
    return found


def _text_of(message: ChatMessage) -> str:
    if message["kind"] == "response":
        return stored.response_text(message)
    prompts = (part.get("content") for part in message["parts"] if part["part_kind"] == "user-prompt")
    return "\n\n".join(text for content in prompts if (text := _prompt_text(content)))


def _prompt_text(content: object) -> str:
    if isinstance(content, str):
        return content
    items = content if isinstance(content, list) else []
    return "\n".join(item for item in items if isinstance(item, str))
