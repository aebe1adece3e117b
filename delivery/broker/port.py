"""The ports of leases and of wake-ups."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class Lease(Protocol):
    """An exclusive, expiring, renewed right; held inside `Leases.hold`."""

    name: str

    @abstractmethod
    def ensure_held(self) -> None:
        """Raise LeaseLost unless the right is certainly still ours (monotonic clock, safety margin)."""

    @abstractmethod
    async def wait_lost(self) -> None:
        """Return when the lease is lost; never while it is held."""


class Leases(Protocol):
    """Exclusive rights among all replicas, timed by the broker's clock alone."""

    @abstractmethod
    def acquire(self, name: str, *, ttl: float = 6.0) -> AbstractAsyncContextManager[Lease]:
        """Acquire, renew every ttl/3, release on exit (a successor may take over at once); raises Busy.

        `name` is any string; it is hashed before it becomes a subject.
        """

    @abstractmethod
    async def is_held(self, name: str) -> bool:
        """Say whether anybody holds this name now; raises DeliveryError while nobody can know."""


class WorkQueue(StrEnum):
    """What there is to do; each queue coalesces wake-ups by key."""

    TURN = "turn"
    DELIVER = "deliver"
    HOOK = "hook"


class WakeUp(Protocol):
    """A wake-up: look at `key` in SQL. Signals are hints: losing or repeating one loses nothing."""

    key: str

    @abstractmethod
    async def ack(self) -> None:
        """The key was looked at; a wake-up sent meanwhile arrives afresh."""

    @abstractmethod
    async def nak(self, delay: float) -> None:
        """Give it back, to be delivered again after `seconds`."""

    @abstractmethod
    async def in_progress(self) -> None:
        """Still at it: do not redeliver for another 30 s; call every 10 s."""


class WakeUps(Protocol):
    """Wake-ups among all replicas; each goes to one listener of its queue."""

    @abstractmethod
    async def publish(self, queue: WorkQueue, key: str) -> None:
        """Best effort: never raises when the broker is away (the janitor repeats it)."""

    @abstractmethod
    async def publish_at(self, queue: WorkQueue, key: str, moment: datetime) -> None:
        """Wake at a moment; a second call for the same key replaces the first. Best effort."""

    @abstractmethod
    def subscribe(self, queue: WorkQueue, *, at_most: int, stop: asyncio.Event) -> AsyncIterator[WakeUp]:
        """Yield signals until `stop`, at most `at_most` undone at a time; survives broker restarts."""
