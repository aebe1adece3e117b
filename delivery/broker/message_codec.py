"""Encode events as broker messages and decode them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from delivery.events.event import Event, EventType
from delivery.events.port import StoredEvent

PREVIOUS = "Dovecote-Previous"
TYPE = "Dovecote-Type"
NUMBER = "Dovecote-N"
MESSAGE_ID = "Nats-Msg-Id"
_ID_PREFIX = "e:"
"""What precedes an event's id in its message id.

Earlier versions had nothing there, so the broker does not take an event for the message that such a version
published on another subject.
"""
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL = "Nats-TTL"
ROLLUP = "Nats-Rollup"
SEQUENCE = "Nats-Sequence"
SUBJECT = "Nats-Subject"
LAST_SEQUENCE = "Nats-Last-Sequence"
PENDING = "Nats-Num-Pending"
EPOCH_NUMBER = "_"
"""What is before the number of an epoch in its name."""

_ID_EPOCH = "@"


def encode_headers(event: Event, *, previous: int, epoch: str) -> dict[str, str]:
    """Return the headers by which a reader classifies an event without decoding its body.

    In a later epoch of the same stream the id has the epoch's number: the broker would take an event that it
    deleted in the last two minutes, and that is published again, for a repeated one, and not store it.
    """
    number = epoch.partition(EPOCH_NUMBER)[2]
    message_id = f"{_ID_PREFIX}{event.id}{_ID_EPOCH}{number}" if number else _ID_PREFIX + event.id
    headers = {MESSAGE_ID: message_id, TYPE: str(event.type), PREVIOUS: str(previous)}
    if event.n is not None:
        headers[NUMBER] = str(event.n)
    return headers


def decode_message(message: Msg, *, live: bool = False) -> StoredEvent:
    """Return the event of a stored or republished message."""
    headers: Mapping[str, str] = message.headers or {}
    seq = int(headers[SEQUENCE])
    return StoredEvent(
        seq=seq,
        previous=_previous(headers, seq),
        type=EventType.read(headers[TYPE]),
        raw=message.data,
        # Only a republished message has the previous sequence of its subject in this header.
        previous_transient=int(headers.get(LAST_SEQUENCE, "0")) if live else 0,
    )


def _previous(headers: Mapping[str, str], seq: int) -> int:
    """Return the seq of the event before, or one that shows that there was one.

    A higher one than the event's own is of an earlier incarnation of the stream: this event is the first of
    its conversation since. Readers from the start are told a gap up to it.
    """
    return min(int(headers.get(PREVIOUS, "0")), seq - 1)


def has_more(message: Msg) -> bool:
    """Return whether the subject of a batched direct get has more messages after this one."""
    return int((message.headers or {}).get(PENDING, "0")) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as the stream's leader returns it."""

    seq: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> StoredMessage:
        """Parse the `message` object of an API response."""
        header_lines = base64.b64decode(message.get("hdrs", "")).decode("utf-8", "replace").split("\r\n")[1:]
        parts = (header.partition(":") for header in header_lines)
        return cls(
            seq=message["seq"],
            headers={name: value.strip() for name, _, value in parts if name},
            body=base64.b64decode(message.get("data", "")),
        )

    @property
    def event_id(self) -> str:
        """Return the id of the event."""
        return self.headers.get(MESSAGE_ID, "").removeprefix(_ID_PREFIX).partition(_ID_EPOCH)[0]

    def to_event(self) -> StoredEvent:
        """Return the message as a stored event."""
        return StoredEvent(
            seq=self.seq,
            previous=_previous(self.headers, self.seq),
            type=EventType.read(self.headers[TYPE]),
            raw=self.body,
        )
