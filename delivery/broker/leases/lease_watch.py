"""What others learn of leases: when one becomes free, and which of a kind are held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nats.aio.msg import Msg

from delivery.background import log_errors
from delivery.broker.connection import NatsConnection
from delivery.broker.message_codec import SEQUENCE, SUBJECT
from delivery.broker.stream_config import EVENTS, subject_token
from delivery.errors import BrokerUnreachable, DeliveryError

RELEASED = "released"
"""The state of a lease that was given back; its message expires soon."""

_WATCH_SECONDS = 1.0
_WATCHED_AT_ONCE = 500
_TRIES = 20
_RETRY_SECONDS = 0.05


class LeaseWatch:
    """Watches leases that others hold; one request asks the broker for hundreds of them."""

    def __init__(self, nats: NatsConnection) -> None:
        self._nats = nats
        self._watched: dict[asyncio.Event, str] = {}
        self._checking: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, subject: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set once the subject has no held lease."""
        freed = asyncio.Event()
        self._watched[freed] = subject
        self._checking = self._checking or asyncio.create_task(self._check_regularly())
        try:
            yield freed
        finally:
            del self._watched[freed]
            if not self._watched:
                self._checking.cancel()
                self._checking = None

    async def list_held(self, kind: str) -> frozenset[str]:
        """Return the names of the held leases of a kind. Raises BrokerUnreachable, BrokerRefused."""
        return _held_names(await self._nats.direct_get(EVENTS, {"multi_last": [f"lease.{kind}.*"]}))

    async def list_held_after(self, kind: str, subject: str, seq: int) -> frozenset[str]:
        """Return what `list_held` does, with all that was stored before the message `seq` on `subject`.

        Any server of a cluster answers, and it may be behind: it is asked until it has that message.
        """
        own, request = f"lease.{kind}.*", {"multi_last": [f"lease.{kind}.*", subject]}
        for _ in range(_TRIES):
            messages = await self._nats.direct_get(EVENTS, request)
            headers = [message.headers or {} for message in messages]
            if any(one[SUBJECT] == subject and int(one[SEQUENCE]) >= seq for one in headers):
                prefix = own.removesuffix("*")
                return _held_names(
                    message
                    for message, header in zip(messages, headers, strict=True)
                    if header[SUBJECT].startswith(prefix)
                )
            await asyncio.sleep(_RETRY_SECONDS)
        raise BrokerUnreachable("the servers of the stream are behind")

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with log_errors("leases.watch"), suppress(DeliveryError):  # the broker is away
                await self._check(sorted(set(self._watched.values())))

    async def _check(self, subjects: list[str]) -> None:
        free = set(subjects)
        for start in range(0, len(subjects), _WATCHED_AT_ONCE):
            request = {"multi_last": subjects[start : start + _WATCHED_AT_ONCE]}
            for message in await self._nats.direct_get(EVENTS, request):
                if decode_lease(message.data).get("state") != RELEASED:
                    free.discard((message.headers or {})[SUBJECT])
        for freed, subject in self._watched.items():
            if subject in free:
                freed.set()


def _held_names(messages: Iterable[Msg]) -> frozenset[str]:
    values = [decode_lease(message.data) for message in messages]
    return frozenset(str(value.get("name")) for value in values if value.get("state") != RELEASED)


def lease_subject(name: str) -> str:
    """Return the subject of a lease: its kind, for readability, and the hash of its name."""
    kind, colon, _ = name.partition(":")
    kind = kind if colon and kind.isascii() and kind.isalpha() else "any"
    return f"lease.{kind.lower()}.{subject_token(name)}"


def decode_lease(data: bytes) -> dict[str, Any]:
    """Return the value of a lease's message; empty if it is not readable."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
