"""How events are written as broker messages, and read back."""

from __future__ import annotations

from collections.abc import Mapping

from nats.aio.msg import Msg

from delivery.event import Event, Kind
from delivery.port import Recorded

PREVIOUS = "Dovecote-Previous"
TYPE = "Dovecote-Type"
NUMBER = "Dovecote-N"
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL = "Nats-TTL"
ROLLUP = "Nats-Rollup"
SEQUENCE = "Nats-Sequence"
SUBJECT = "Nats-Subject"
LAST_SEQUENCE = "Nats-Last-Sequence"


def headers_of(event: Event, *, previous: int) -> dict[str, str]:
    """Return the headers that let a reader judge an event without decoding it."""
    headers = {MESSAGE_ID: event.id, TYPE: str(event.type), PREVIOUS: str(previous)}
    if event.n is not None:
        headers[NUMBER] = str(event.n)
    return headers


def recorded_from(message: Msg, *, live: bool = False) -> Recorded:
    """Return the event of a stored or republished message."""
    headers: Mapping[str, str] = message.headers or {}
    seq = int(headers[SEQUENCE])
    previous = int(headers.get(PREVIOUS, "0"))
    return Recorded(
        seq=seq,
        previous=previous if previous < seq else 0,  # the stream was made anew since
        type=Kind(headers[TYPE]),
        raw=message.data,
        # Only a republished message tells the subject's previous sequence by this header.
        sibling=int(headers.get(LAST_SEQUENCE, "0")) if live else 0,
    )
