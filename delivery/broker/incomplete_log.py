"""An event log that lacks events: how it is found, and marked until the outbox has published all again.

A limit that somebody lowered deletes events (`stream_settings`), and so does a disk that damages a part of
the log: nats-server leaves out what it cannot read. Both leave later events of a conversation, so that
nothing falls back. A hole shows in an event whose predecessor is missing although earlier ones of the
conversation are stored, because expiry deletes the oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog

from delivery.broker.connection import NatsConnection
from delivery.broker.stream_config import EVENTS, refusal
from delivery.broker.stream_settings import INCOMPLETE
from delivery.events.port import StoredEvent

_log = structlog.get_logger(__name__)

_REPAIR_SECONDS = 3600.0
"""The shortest time between two repairs by a process, in case that publishing all again does not help."""

_NO_MESSAGE = 10037


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """An event that a reader missed between others: its subject and its position."""

    subject: str
    seq: int


class LogHoles:
    """The last hole that readers have met, and when one was repaired."""

    def __init__(self) -> None:
        self._met: Hole | None = None
        self._repaired_at = -_REPAIR_SECONDS

    def note(self, subject: str, events: Sequence[StoredEvent], *, after: int) -> None:
        """Compare lasting events of a subject, read after a position, each with the one before it."""
        known = after
        for event in events:
            if 0 < known < event.previous:
                self._met = Hole(subject=subject, seq=event.previous)
                return
            known = event.seq

    async def find(self, nats: NatsConnection) -> Hole | None:
        """Return the hole if the leader lacks that event too, and has an earlier one of the conversation.

        A reader of a NATS replica that lags misses events too, and so does one that comes back after its
        next events have expired: then no earlier ones are stored. Raises BrokerUnreachable, BrokerRefused.
        """
        met, self._met = self._met, None
        if met is None or monotonic() < self._repaired_at + _REPAIR_SECONDS:
            return None
        if await _read(nats, {"seq": met.seq}) is not None:
            return None
        first = await _read(nats, {"seq": 1, "next_by_subj": met.subject})
        return met if first is not None and first["seq"] < met.seq else None

    def note_repair(self) -> None:
        """Record that all events are published again."""
        self._repaired_at = monotonic()


async def mark_incomplete(nats: NatsConnection) -> None:
    """Note that all events are to be published again. Raises BrokerRefused, BrokerUnreachable."""
    await _update_metadata(nats, set_mark=True)


async def mark_complete(nats: NatsConnection) -> None:
    """Note that the events are published again. Raises BrokerRefused, BrokerUnreachable."""
    await _update_metadata(nats, set_mark=False)


async def purge_incomplete(nats: NatsConnection) -> None:
    """Delete what EVENTS has left of all events, but no leases. Raises BrokerRefused, BrokerUnreachable."""
    response = await nats.api_request(f"STREAM.PURGE.{EVENTS}", {"filter": "ev.>"})
    if "error" in response:
        raise refusal(EVENTS, response)


async def _update_metadata(nats: NatsConnection, *, set_mark: bool) -> None:
    have = (await nats.api_request(f"STREAM.INFO.{EVENTS}")).get("config", {})
    metadata = {name: value for name, value in (have.get("metadata") or {}).items() if name != INCOMPLETE}
    metadata |= {INCOMPLETE: "true"} if set_mark else {}
    response = await nats.api_request(f"STREAM.UPDATE.{EVENTS}", have | {"metadata": metadata})
    if "error" in response:
        raise refusal(EVENTS, response)


async def _read(nats: NatsConnection, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return a message as the leader has it, or None."""
    response = await nats.api_request(f"STREAM.MSG.GET.{EVENTS}", request)
    if "error" not in response:
        message: dict[str, Any] = response["message"]
        return message
    if response["error"].get("err_code") == _NO_MESSAGE:
        return None
    raise refusal(EVENTS, response)
