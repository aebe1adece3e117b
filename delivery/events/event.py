"""Events: immutable facts with an id, a type and a number in their conversation's order."""

from __future__ import annotations

import json
import secrets
import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from delivery.database.clock import utc_now


class EventType(StrEnum):
    """The public types of events."""

    TURN_QUEUED = "turn.queued"
    TURN_STARTED = "turn.started"
    TURN_RESTARTED = "turn.restarted"
    TURN_RETRYING = "turn.retrying"
    TURN_WAITING = "turn.waiting"
    TURN_COMPLETED = "turn.completed"
    TURN_FAILED = "turn.failed"
    TURN_CANCELLED = "turn.cancelled"
    TURN_UNDONE = "turn.undone"
    MESSAGE_RECEIVED = "message.received"
    MESSAGE_DELTA = "message.delta"
    MESSAGE_COMPLETED = "message.completed"
    MESSAGE_EDITED = "message.edited"
    MESSAGE_DELETED = "message.deleted"
    MESSAGE_REACTED = "message.reacted"
    TOOL_CALLED = "tool.called"
    TOOL_DELTA = "tool.delta"
    TOOL_COMPLETED = "tool.completed"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_RESOLVED = "approval.resolved"
    APPROVAL_EXPIRED = "approval.expired"
    QUESTION_REQUESTED = "question.requested"
    QUESTION_ANSWERED = "question.answered"
    QUESTION_EXPIRED = "question.expired"
    JOB_STARTED = "job.started"
    JOB_PROGRESS = "job.progress"
    JOB_COMPLETED = "job.completed"
    JOB_FAILED = "job.failed"
    JOB_STOPPED = "job.stopped"
    JOB_LOST = "job.lost"
    DELIVERY_SUCCEEDED = "delivery.succeeded"
    DELIVERY_FAILED = "delivery.failed"
    DELIVERY_DEAD = "delivery.dead"
    SANDBOX_STARTED = "sandbox.started"
    SANDBOX_SUSPENDED = "sandbox.suspended"
    SANDBOX_STOPPED = "sandbox.stopped"
    AGENT_FINISHED = "agent.finished"
    SCHEDULE_FIRED = "schedule.fired"
    HANDOVER_STARTED = "handover.started"
    HANDOVER_ENDED = "handover.ended"
    WEBHOOK_TEST = "webhook.test"
    WEBHOOK_DISABLED = "webhook.disabled"

    @classmethod
    def read(cls, name: str) -> EventType:
        """Return the type of a stored event. One that only a newer version has is none of the members.

        Replicas of several versions share the events during an upgrade, and a version may be taken back.
        """
        found = cls._value2member_map_.get(name)
        if isinstance(found, cls):
            return found
        unknown = str.__new__(cls, name)
        unknown._name_ = unknown._value_ = name
        return unknown


TRANSIENT = frozenset({EventType.MESSAGE_DELTA, EventType.TOOL_DELTA})
"""Types that have a seq but no n, are stored until their turn ends, and are not replayed once superseded."""

DELIVERY_EVENTS = frozenset(
    {EventType.DELIVERY_SUCCEEDED, EventType.DELIVERY_FAILED, EventType.DELIVERY_DEAD}
)
"""Types that are never sent to webhooks; otherwise each delivery would cause another."""

TURN_ENDS = frozenset({EventType.TURN_COMPLETED, EventType.TURN_FAILED, EventType.TURN_CANCELLED})

DECISIONS = frozenset({EventType.APPROVAL_RESOLVED, EventType.QUESTION_ANSWERED})
"""The events with which a person ends an approval or a question."""

EXPIRIES = frozenset({EventType.APPROVAL_EXPIRED, EventType.QUESTION_EXPIRED})
"""The events that take an approval or a question back because its turn has ended."""

REQUEST_ENDS = DECISIONS | EXPIRIES
"""The events after which an approval or a question waits for nobody."""

MAX_DATA_BYTES = 224 * 1024
"""The largest size of an event's data as JSON: the stream accepts messages of 256 KiB with headers."""

MAX_TEXT_BYTES = 128 * 1024
"""The largest size of one text in an event, as JSON; the full text is stored with the state."""

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_LETTERS = 26
"""Letters and digits of an id after its prefix."""


def new_id(prefix: str) -> str:
    """Return an opaque id `<prefix>_…`, time-ordered to the millisecond, with 80 random bits."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    digits = [_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(digits)}"


def rfc3339(moment: datetime) -> str:
    """Return an aware datetime as RFC 3339 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _truncated(value: Any, max_bytes: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _truncated(inner, max_bytes) for key, inner in value.items()}
    if not isinstance(value, str) or len(value) * 6 <= max_bytes:
        return value
    return _truncate_text(value, max_bytes)


def _truncate_text(text: str, max_bytes: int) -> str:
    """Return the longest beginning of a text whose JSON has at most `max_bytes` bytes."""
    fitting = bisect_right(range(len(text) + 1), max_bytes, key=lambda length: len(json.dumps(text[:length])))
    return text[: max(fitting - 1, 0)]


def _to_json(shape: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(shape).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact; `n` numbers a conversation's lasting events from 1 (None: transient or not yet numbered)."""

    id: str
    type: EventType
    time: datetime
    conversation: str
    turn: str | None = None
    data: Mapping[str, Any]
    n: int | None = None
    _encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def now(
        cls,
        event_type: EventType,
        conversation: str,
        data: Mapping[str, Any],
        *,
        turn: str | None = None,
        event_id: str | None = None,
    ) -> Event:
        """Return an event with the current time; a given `event_id` makes a repeated call the same event."""
        return cls(
            id=event_id or new_id("evt"),
            type=event_type,
            time=utc_now(),
            conversation=conversation,
            turn=turn,
            data=data,
        )

    def numbered(self, n: int) -> Event:
        """Return the event with its number in the conversation."""
        return Event(
            id=self.id,
            type=self.type,
            time=self.time,
            conversation=self.conversation,
            turn=self.turn,
            data=self.data,
            n=n,
        )

    def truncated(self, full_text_url: str | None = None) -> Event:
        """Return the event with data of at most MAX_DATA_BYTES and texts of at most MAX_TEXT_BYTES.

        If a text was cut, `data.truncated` is true and `data.url` is `full_text_url`, if one is given.
        """
        if len(json.dumps(self.data)) <= MAX_TEXT_BYTES:
            return self
        max_bytes, data = MAX_TEXT_BYTES, _truncated(self.data, MAX_TEXT_BYTES)
        while len(json.dumps(data)) > MAX_DATA_BYTES and max_bytes > 1:
            max_bytes //= 2
            data = _truncated(self.data, max_bytes)
        if data == self.data:
            return self
        link = {"url": full_text_url} if full_text_url else {}
        return replace(self, data={**data, "truncated": True, **link})

    def as_json(self, seq: int | None = None) -> dict[str, Any]:
        """Return the public JSON object; `seq` is the cursor, once the stream has assigned one."""
        shape: dict[str, Any] = {"v": 1}
        if seq is not None:
            shape["seq"] = seq
        if self.n is not None:
            shape["n"] = self.n
        shape |= {
            "id": self.id,
            "time": rfc3339(self.time),
            "type": str(self.type),
            "conversation": self.conversation,
        }
        if self.turn is not None:
            shape["turn"] = self.turn
        return shape | {"data": dict(self.data)}

    def encode(self, seq: int | None = None) -> bytes:
        """Return the bytes that the outbox and the stream store; with `seq`, the body of a webhook."""
        if seq is not None:
            return _to_json(self.as_json(seq))
        if self._encoded is None:
            object.__setattr__(self, "_encoded", _to_json(self.as_json()))
        assert self._encoded is not None
        return self._encoded

    @classmethod
    def decode(cls, raw: bytes) -> Event:
        """Return the event that `encode` wrote."""
        shape = json.loads(raw)
        return cls(
            id=shape["id"],
            type=EventType.read(shape["type"]),
            time=datetime.fromisoformat(shape["time"]),
            conversation=shape["conversation"],
            turn=shape.get("turn"),
            data=shape["data"],
            n=shape.get("n"),
        )
