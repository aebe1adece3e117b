"""A submission, the ids that it gets, and the reasons to refuse it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.agents.history import HistoryEntry


class SubmissionError(Exception):
    """The submission is refused; nothing was changed."""


class UnknownTarget(SubmissionError):
    """The conversation or agent named does not exist in this account."""


class UnknownAgent(UnknownTarget):
    """The agent named does not exist in this account."""


class WrongAgent(SubmissionError):
    """The conversation belongs to another agent."""


class IdempotencyKeyReused(SubmissionError):
    """The idempotency key was used for a different message."""


class QueueFull(SubmissionError):
    """The conversation's queue is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A message for an agent.

    `conversation` is an id or the caller's own name (created if new; None creates one without a name).
    `key` is an idempotency key of `source`; with `conversation_scoped_key` it is unique only for the asker in
    the conversation. With `is_first` an earlier submission with this key is forgotten. `endpoint` is a
    webhook for this turn's results. `notify`: emit `agent.finished`. `own_turn`: whatever the queue mode,
    the message waits for a turn of its own and cancels none. `steers`: whatever the queue mode, the open turn
    reads it before its next model request.
    `platform_id` is the message's id on its chat platform, `origin` says who wrote it in a room, `context`
    what was said before it, `request` what a client adds (`ClientRequest`), `traceparent` is its span.
    `history` is what a client says of the time before the conversation, for its first turn.
    """

    account: str
    text: str
    asker: str
    asker_name: str = ""
    agent: str | None = None
    conversation: str | None = None
    source: str = "api"
    key: str | None = None
    conversation_scoped_key: bool = False
    is_first: bool = False
    endpoint: str | None = None
    attachments: Sequence[Mapping[str, Any]] = ()
    notify: bool = False
    own_turn: bool = False
    steers: bool = False
    platform_id: str | None = None
    origin: Mapping[str, Any] | None = None
    context: Mapping[str, Any] | None = None
    request: Mapping[str, Any] | None = None
    traceparent: str | None = None
    history: HistoryEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The ids of a submission. `repeated`: it was submitted before, with these ids.

    `superseded` are the turns that are cancelled because of it.
    """

    turn: str
    conversation: str
    message: str
    repeated: bool = False
    superseded: tuple[str, ...] = ()
