"""What the model agent remembers between attempts and turns, and its bytes.

Bytes are the line `dovecote-model/1`, then JSON. The messages inside are pydantic-ai's own format, which it
keeps readable across its versions; the first line is ours, and tells another agent's bytes from damage.
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
    """Where a turn stands: the conversation as pydantic-ai keeps it, and what our own loop needs.

    `conversation.usage` counts this turn alone. `notes` are facts that outlive compaction word for word:
    what people decided and what jobs came to. `repeats` counts how often the call `last_call` came in a row,
    `heard` how much of what was said to the turn while it runs stands in the messages.
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
        """Return what this turn has used."""
        return self.conversation.usage

    def final_text(self) -> str | None:
        """Return the final text if the model has given it already, as after a crash just before the end."""
        last = self.messages[-1] if self.messages else None
        if isinstance(last, ModelResponse) and not last.tool_calls:
            return response_text(last)
        return None

    def add_note(self, fact: str) -> None:
        """Keep a fact beyond compaction; the oldest make room."""
        self.notes = [*self.notes, fact][-MAX_NOTES:]


_ADAPTER = TypeAdapter(AgentState)


def response_text(response: ModelResponse) -> str:
    """Return what a response says to people, without thinking and calls."""
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


def repair_response(response: ModelResponse) -> None:
    """Make what a model wrote fit to be stored."""
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
    """Return what the conversation's next turn needs: the messages and notes, no counts."""
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
    """Return the conversation to start a turn on; a paused or broken-off turn's state serves as well.

    Calls that such a turn left without a result are closed, so that a model accepts the messages.
    """
    found = decode(stored)
    if found is None:
        return AgentState()
    conversation = Conversation(messages=repair_messages(found.messages))
    return AgentState(conversation=conversation, notes=found.notes)


def _without_instructions(message: ModelMessage) -> ModelMessage:
    """Return a message without the instructions: every run states them anew."""
    if isinstance(message, ModelRequest) and message.instructions is not None:
        return dataclasses.replace(message, instructions=None)
    return message
