"""The model agent's state between attempts and turns, and how it is stored.

The messages are stored in pydantic-ai's own format, which stays readable across its versions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import Conversation, RunUsage
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    repair_messages,
)

from gateway.agents import history
from gateway.agents.history import HistoryEntry, TurnProgress, UnreadableHistory
from gateway.agents.model import compaction, images
from gateway.agents.model.text import repair_surrogates
from gateway.agents.port import AgentError

MAX_NOTES = 60


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The conversation before this turn: its messages, their estimated tokens, and its notes."""

    messages: Sequence[ModelMessage] = ()
    tokens: int = 0
    notes: Sequence[str] = ()


@dataclass(kw_only=True)
class AgentState:
    """The state of a turn: the conversation in pydantic-ai's format, and the state of the run loop.

    `conversation` contains the `earlier` messages too, unless compaction has replaced them; its usage counts
    this turn alone. `notes` are facts that compaction keeps verbatim: decisions about approvals and results
    of jobs. `repeats` counts how often the call `last_call` was repeated in a row. `heard` counts the
    steering messages that the conversation contains. `replaces` means that an attempt before this one
    compacted the conversation.
    """

    conversation: Conversation = field(default_factory=Conversation)
    notes: list[str] = field(default_factory=list)
    last_call: str = ""
    repeats: int = 0
    heard: int = 0
    earlier: Earlier = field(default_factory=Earlier)
    replaces: bool = False

    @property
    def messages(self) -> list[ModelMessage]:
        """Return the messages so far."""
        return self.conversation.messages

    @messages.setter
    def messages(self, messages: Sequence[ModelMessage]) -> None:
        self.conversation.messages = list(messages)

    @property
    def all_notes(self) -> list[str]:
        """Return the notes of the whole conversation, the oldest removed if there are too many."""
        return [*self.earlier.notes, *self.notes][-MAX_NOTES:]

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

    def estimate_tokens(self, messages: Sequence[ModelMessage]) -> int:
        """Return the estimated tokens of messages; those of the earlier ones are counted once."""
        if not self.continues_earlier(messages):
            return compaction.estimate_tokens(messages)
        return self.earlier.tokens + compaction.estimate_tokens(messages[len(self.earlier.messages) :])

    def continues_earlier(self, messages: Sequence[ModelMessage]) -> bool:
        """Return whether messages begin with the earlier ones, unchanged."""
        earlier = self.earlier.messages
        return len(messages) >= len(earlier) and all(map(_is_same, earlier, messages))

    def to_entry(self) -> HistoryEntry:
        """Return what the finished turn adds to the history."""
        return self._entry(images.for_history)

    def to_progress(self) -> TurnProgress:
        """Return what the turn adds so far, with the state to resume from."""
        slim = dataclasses.replace(self.conversation, messages=[])
        state = {
            "conversation": _CONVERSATION.dump_python(slim, mode="json", exclude_none=True),
            "last_call": self.last_call,
            "repeats": self.repeats,
            "heard": self.heard,
        }
        return TurnProgress(entry=self._entry(images.without_image_bytes), state=state)

    def _entry(self, without_images: Any) -> HistoryEntry:
        replaces = self.replaces or not self.continues_earlier(self.messages)
        new = self.messages if replaces else self.messages[len(self.earlier.messages) :]
        kept = [_without_instructions(message) for message in without_images(new)]
        return HistoryEntry(
            messages=tuple(ModelMessagesTypeAdapter.dump_python(kept, mode="json", exclude_none=True)),
            notes=tuple(self.all_notes if replaces else self.notes),
            replaces=replaces,
        )


_CONVERSATION = TypeAdapter(Conversation)


@dataclass(frozen=True, kw_only=True)
class _ParsedEntry:
    messages: Sequence[ModelMessage]
    tokens: int


_PARSED: WeakKeyDictionary[HistoryEntry, _ParsedEntry] = WeakKeyDictionary()
"""Entries that were validated; the gateway keeps entries of conversations that are in use."""


def _is_same(one: object, other: object) -> bool:
    return one is other


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
    return history.encode_progress(state.to_progress())


def initial_state(entries: Sequence[HistoryEntry]) -> AgentState:
    """Return the state at the start of a turn: the conversation so far.

    Calls without a result are closed, because models refuse them.
    """
    effective = history.effective(entries)
    parsed = [_parse(entry) for entry in effective]
    notes = tuple(note for entry in effective for note in entry.notes)[-MAX_NOTES:]
    earlier = Earlier(
        messages=tuple(message for one in parsed for message in one.messages),
        tokens=sum(one.tokens for one in parsed),
        notes=notes,
    )
    return AgentState(conversation=Conversation(messages=list(earlier.messages)), earlier=earlier)


def resume(stored: bytes | None, entries: Sequence[HistoryEntry]) -> AgentState | None:
    """Return stored progress after the conversation's history; raises AgentError when it is unreadable.

    Bytes of another agent (a conversation may change hands) count as none.
    """
    try:
        progress = history.decode_progress(stored)
    except UnreadableHistory as error:
        raise AgentError(str(error)) from error
    if progress is None:
        return None
    earlier = Earlier() if progress.entry.replaces else initial_state(entries).earlier
    conversation = _conversation(progress.state)
    conversation.messages = [*earlier.messages, *_validate(progress.entry)]
    return AgentState(
        conversation=conversation,
        notes=list(progress.entry.notes),
        last_call=str(progress.state.get("last_call", "")),
        repeats=int(progress.state.get("repeats", 0)),
        heard=int(progress.state.get("heard", 0)),
        earlier=earlier,
        replaces=progress.entry.replaces,
    )


def _conversation(state: Mapping[str, Any]) -> Conversation:
    try:
        return _CONVERSATION.validate_python({"messages": [], **state.get("conversation", {})})
    except (ValidationError, TypeError) as error:
        raise _unreadable() from error


def _parse(entry: HistoryEntry) -> _ParsedEntry:
    parsed = _PARSED.get(entry)
    if parsed is None:
        messages = repair_messages(_validate(entry))
        parsed = _ParsedEntry(messages=messages, tokens=compaction.estimate_tokens(messages))
        _PARSED[entry] = parsed
    return parsed


def _validate(entry: HistoryEntry) -> list[ModelMessage]:
    try:
        return ModelMessagesTypeAdapter.validate_python(list(entry.messages))
    except ValidationError as error:
        raise _unreadable() from error


def _unreadable() -> AgentError:
    return AgentError("This conversation's stored history cannot be read: start a new conversation.")


def _without_instructions(message: ModelMessage) -> ModelMessage:
    """Return a message without the instructions: every run adds them again."""
    if isinstance(message, ModelRequest) and message.instructions is not None:
        return dataclasses.replace(message, instructions=None)
    return message
