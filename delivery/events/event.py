"""Events: immutable facts with an id, a type and a place in a conversation's order."""

from __future__ import annotations

import json
import secrets
import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from delivery.database.clock import utc_now


class EventType(StrEnum):
    """The vocabulary that clients build on."""

    TURN_QUEUED = "turn.queued"
    TURN_STARTED = "turn.started"
    TURN_RESTARTED = "turn.restarted"
    TURN_COMPLETED = "turn.completed"
    TURN_FAILED = "turn.failed"
    TURN_CANCELLED = "turn.cancelled"
    MESSAGE_RECEIVED = "message.received"
    MESSAGE_DELTA = "message.delta"
    MESSAGE_COMPLETED = "message.completed"
    TOOL_CALLED = "tool.called"
    TOOL_COMPLETED = "tool.completed"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_RESOLVED = "approval.resolved"
    JOB_STARTED = "job.started"
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
    WEBHOOK_TEST = "webhook.test"
    WEBHOOK_DISABLED = "webhook.disabled"


TRANSIENT = frozenset({EventType.MESSAGE_DELTA})
"""Kinds that have a seq and no n, live about an hour and are never replayed once superseded."""

MAX_DATA_BYTES = 224 * 1024
"""Bytes an event's data may take as JSON: the stream takes messages of 256 KiB with their headers."""

MAX_TEXT_BYTES = 128 * 1024
"""Bytes one text may take in an event, as JSON; the whole stands where the state is kept."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


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
    """Cut a text so that its JSON takes no more than `most` bytes."""
    kept = bisect_right(range(len(text) + 1), max_bytes, key=lambda length: len(json.dumps(text[:length])))
    return text[: max(kept - 1, 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact. `n` counts a conversation's lasting events from 1 (None: transient or not yet counted)."""

    id: str
    type: EventType
    time: datetime
    conversation: str
    turn: str | None = None
    data: Mapping[str, Any]
    n: int | None = None

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
        """Return an event of this moment; `event_id` makes a repeated statement the same event."""
        return cls(
            id=event_id or new_id("evt"),
            type=event_type,
            time=utc_now(),
            conversation=conversation,
            turn=turn,
            data=data,
        )

    def numbered(self, n: int) -> Event:
        """Return the event with its place in the conversation's lasting order."""
        return replace(self, n=n)

    def truncated(self, full_text_url: str | None = None) -> Event:
        """Return the event within LARGEST, its texts within LARGEST_TEXT.

        Where a text was cut, `data.truncated` says so and `data.url` is `whole`, where all of it stands.
        """
        most, data = MAX_TEXT_BYTES, _truncated(self.data, MAX_TEXT_BYTES)
        while len(json.dumps(data)) > MAX_DATA_BYTES and most > 1:
            most //= 2
            data = _truncated(self.data, most)
        if data == self.data:
            return self
        link = {"url": full_text_url} if full_text_url else {}
        return replace(self, data={**data, "truncated": True, **link})

    def as_json(self, seq: int | None = None) -> dict[str, Any]:
        """Return the public shape; `seq` is the cursor once the stream has given one."""
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
        """Return the bytes that the outbox and the stream keep; with `seq`, those a webhook gets."""
        return json.dumps(self.as_json(seq), separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "replace"
        )

    @classmethod
    def decode(cls, raw: bytes) -> Event:
        """Return the event that `dump` wrote."""
        shape = json.loads(raw)
        return cls(
            id=shape["id"],
            type=EventType(shape["type"]),
            time=datetime.fromisoformat(shape["time"]),
            conversation=shape["conversation"],
            turn=shape.get("turn"),
            data=shape["data"],
            n=shape.get("n"),
        )
