"""What the gateway answers, as values; `fields` has everything that it sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = Mapping[str, Any]

ENDED = frozenset({"completed", "failed", "cancelled", "stopped", "lost"})
"""States after which a turn or a job does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTurn:
    """A turn that the gateway accepted: it happens, whatever becomes of this client."""

    id: str
    conversation: str
    fields: Fields = field(repr=False)

    @classmethod
    def from_fields(cls, fields: Fields) -> StartedTurn:
        """Return the value of an answer."""
        return cls(id=str(fields["turnId"]), conversation=str(fields["conversationId"]), fields=fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """A turn: `output` is the answer once its state is completed, `error` why it failed."""

    id: str
    state: str
    output: str | None
    error: str | None
    fields: Fields = field(repr=False)

    @classmethod
    def from_fields(cls, fields: Fields) -> TurnResult:
        """Return the value of an answer."""
        return cls(
            id=str(fields["id"]),
            state=str(fields["state"]),
            output=fields.get("output"),
            error=fields.get("error"),
            fields=fields,
        )

    @property
    def has_ended(self) -> bool:
        """Return whether the turn does not change any more."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """A background job; its id is the `resultId`."""

    id: str
    state: str
    exit_code: int | None
    command: str
    fields: Fields = field(repr=False)

    @classmethod
    def from_fields(cls, fields: Fields) -> JobAnswer:
        """Return the value of an answer."""
        return cls(
            id=str(fields.get("resultId") or fields["id"]),
            state=str(fields["state"]),
            exit_code=fields.get("exit_code"),
            command=str(fields.get("command") or ""),
            fields=fields,
        )

    @property
    def has_ended(self) -> bool:
        """Return whether the job does not change any more."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """A tool call (`kind` tool) or a question (`kind` question) that waits for a person, or was decided."""

    id: str
    kind: str
    state: str
    question: str
    fields: Fields = field(repr=False)

    @classmethod
    def from_fields(cls, fields: Fields) -> ApprovalAnswer:
        """Return the value of an answer."""
        return cls(
            id=str(fields["id"]),
            kind=str(fields.get("kind") or "tool"),
            state=str(fields.get("state") or ""),
            question=str(fields.get("question") or fields.get("command") or fields.get("tool") or ""),
            fields=fields,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEvent:
    """An event of a conversation, or a notice of the stream: `gap` and `reset` name what cannot be read."""

    type: str
    seq: int | None
    turn: str | None
    data: Fields
    fields: Fields = field(repr=False)

    @classmethod
    def from_fields(cls, fields: Fields) -> ConversationEvent:
        """Return the value of a frame."""
        seq = fields.get("seq")
        return cls(
            type=str(fields.get("type")),
            seq=seq if isinstance(seq, int) else None,
            turn=fields.get("turn"),
            data=fields.get("data") or {},
            fields=fields,
        )
