"""The model agent's state between attempts and turns, and its encoding.

The encoding is the line `dovecote-model/1` and then JSON. The messages are in pydantic-ai's own format,
which stays readable across its versions. The first line tells another agent's state from damage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import Conversation, RunUsage
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    repair_messages,
)

from gateway.agents.model import images
from gateway.agents.model.text import repair_surrogates
from gateway.agents.port import AgentError

FORMAT_PREFIX = b"dovecote-model/"
FORMAT_VERSION = b"1"
MAX_NOTES = 60


@dataclass(kw_only=True)
class AgentState:
    """The state of a turn: the conversation in pydantic-ai's format, and the state of the run loop.

    `conversation.usage` counts this turn alone. `notes` are facts that compaction keeps verbatim: decisions
    about approvals and results of jobs. `repeats` counts how often the call `last_call` was repeated in a
    row. `heard` counts the steering messages that the conversation contains.
    """

    conversation: Conversation = field(default_factory=Conversation)
    notes: list[str] = field(default_factory=list)
    last_call: str = ""
    repeats: int = 0
    heard: int = 0

    @property
    def messages(self) -> list[ModelMessage]:
        """Return the messages so far."""
        return self.conversation.messages

    @messages.setter
    def messages(self, messages: Sequence[ModelMessage]) -> None:
        self.conversation.messages = list(messages)

    @property
    def usage(self) -> RunUsage:
        """Return this turn's usage."""
        return self.conversation.usage

    def final_text(self) -> str | None:
        """Return the final text if the model has given it already, as after a crash just before the end."""
        last = self.messages[-1] if self.messages else None
        if isinstance(last, ModelResponse) and not last.tool_calls:
            return response_text(last)
        return None

    def add_note(self, fact: str) -> None:
        """Keep a fact beyond compaction; the oldest are removed if there are too many."""
        self.notes = [*self.notes, fact][-MAX_NOTES:]


_ADAPTER = TypeAdapter(AgentState)


def response_text(response: ModelResponse) -> str:
    """Return the text of a response, without thinking and calls."""
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


def repair_response(response: ModelResponse) -> None:
    """Replace text that cannot be stored."""
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            part.content = repair_surrogates(part.content)


def encode(state: AgentState) -> bytes:
    """Return a turn's progress as bytes."""
    kept = images.without_image_bytes(state.messages)
    slim = dataclasses.replace(state.conversation, messages=[_without_instructions(item) for item in kept])
    body = _ADAPTER.dump_json(dataclasses.replace(state, conversation=slim), exclude_none=True)
    return FORMAT_PREFIX + FORMAT_VERSION + b"\n" + body


def encode_history(state: AgentState) -> bytes:
    """Return the state for the conversation's next turn: messages and notes, no counters."""
    conversation = dataclasses.replace(
        state.conversation,
        messages=images.for_history(state.messages),
        usage=RunUsage(),
        deferred_tool_requests=None,
    )
    return encode(AgentState(conversation=conversation, notes=state.notes))


def decode(stored: bytes | None) -> AgentState | None:
    """Return stored progress, or None where there is none of this agent's; raises AgentError when unreadable.

    Bytes of another agent (a conversation may change hands) count as none.
    """
    if stored is None or not stored.startswith(FORMAT_PREFIX):
        return None
    version, _, body = stored.removeprefix(FORMAT_PREFIX).partition(b"\n")
    if version != FORMAT_VERSION:
        shown = version[:20].decode(errors="replace")
        raise AgentError(
            f"This conversation's history was written in version {shown} of its format and this gateway "
            f"reads version {FORMAT_VERSION.decode()}: update the gateway, or start a new conversation."
        )
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        raise AgentError(
            "This conversation's stored history cannot be read: start a new conversation."
        ) from error


def decode_history(stored: bytes | None) -> AgentState:
    """Return the conversation to start a turn with; accepts the state of a paused or interrupted turn.

    Calls without a result are closed, because models refuse them.
    """
    found = decode(stored)
    if found is None:
        return AgentState()
    conversation = Conversation(messages=repair_messages(found.messages))
    return AgentState(conversation=conversation, notes=found.notes)


def _without_instructions(message: ModelMessage) -> ModelMessage:
    """Return a message without the instructions: every run adds them again."""
    if isinstance(message, ModelRequest) and message.instructions is not None:
        return dataclasses.replace(message, instructions=None)
    return message
