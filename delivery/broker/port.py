"""The ports of leases and wake-ups."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class Lease(Protocol):
    """An exclusive right that expires unless it is renewed; held inside `Leases.acquire`."""

    name: str

    @abstractmethod
    def ensure_held(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held (monotonic clock, safety margin)."""

    @abstractmethod
    async def wait_lost(self) -> None:
        """Return when the lease is lost; wait for as long as it is held."""


class Leases(Protocol):
    """Leases among all replicas; they expire by the broker's clock alone."""

    @abstractmethod
    def acquire(self, name: str, *, ttl: float = 6.0) -> AbstractAsyncContextManager[Lease]:
        """Acquire a lease of `ttl` seconds, renew it every ttl/3, and release it on exit.

        After a release a successor can acquire it at once. Raises LeaseBusy, BrokerUnreachable,
        BrokerRefused. `name` is any string; it is hashed before it becomes a subject.
        """

    @abstractmethod
    async def is_held(self, name: str) -> bool:
        """Return whether a lease of this name is held now; raises DeliveryError if the broker is away."""


class WorkQueue(StrEnum):
    """The queues of work; each queue coalesces wake-ups by key."""

    TURN = "turn"
    DELIVER = "deliver"
    HOOK = "hook"


class WakeUp(Protocol):
    """A hint to check `key` in SQL; a lost or repeated wake-up does no harm."""

    key: str

    @abstractmethod
    async def ack(self) -> None:
        """Confirm that the key was checked; a wake-up sent since then arrives separately."""

    @abstractmethod
    async def nak(self, delay: float) -> None:
        """Return the wake-up, to be delivered again after `delay` seconds."""

    @abstractmethod
    async def in_progress(self) -> None:
        """Prevent a redelivery for another 30 s; call it every 10 s during long work."""


class WakeUps(Protocol):
    """Wake-ups among all replicas; each goes to one subscriber of its queue."""

    @abstractmethod
    async def publish(self, queue: WorkQueue, key: str) -> None:
        """Send a wake-up, best effort: never raises when the broker is away (the janitor repeats it)."""

    @abstractmethod
    async def publish_at(self, queue: WorkQueue, key: str, moment: datetime) -> None:
        """Send a wake-up at a moment; a second call for the same key replaces the first. Best effort."""

    @abstractmethod
    def subscribe(self, queue: WorkQueue, *, at_most: int, stop: asyncio.Event) -> AsyncIterator[WakeUp]:
        """Yield wake-ups until `stop`, at most `at_most` unacknowledged ones; survives broker restarts."""
