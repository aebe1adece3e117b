"""The ports of leases and wake-ups."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
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
        """Return when the lease is lost; wait for as long as it is held. Raises nothing."""

    @abstractmethod
    def on_lost(self, report: Callable[[], None]) -> Callable[[], None]:
        """Call `report` on the loop when the lease is lost, until the returned function is called.

        A lease that is already lost is reported at once. Raises nothing; `report` must not raise either.
        """


class LocalLease(Lease, Protocol):
    """A lease that this process has acquired without a request to the broker."""

    @abstractmethod
    def release(self) -> None:
        """Release the lease; a successor can acquire it at once. Called once. Raises nothing."""


class Leases(Protocol):
    """Leases among all replicas; they expire by the broker's clock alone."""

    @abstractmethod
    def acquire(
        self, name: str, *, ttl: float = 6.0, session: Lease | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        """Acquire a lease of `ttl` seconds, renew it every ttl/3, and release it on exit.

        After a release a successor can acquire it at once. `name` is any string; it is hashed before it
        becomes a subject. `session` is another lease of this process: once that one has ended, this one is
        lost, and others may acquire it. On entering, raises LeaseBusy if another holder has it,
        BrokerUnreachable, BrokerRefused. A release that fails raises nothing: the lease then expires.
        """

    @abstractmethod
    def acquire_locally(self, name: str) -> LocalLease | None:
        """Acquire a lease without a request to the broker, until its `release`.

        None if another holder has it, or if only the broker can say whether one has. Raises nothing.
        """

    @abstractmethod
    def watch(self, name: str) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set within about a second once a lease of this name may be acquired.

        The requests to the broker do not grow with the number of names that are watched. Raises nothing:
        while the broker is away, the event is not set.
        """

    @abstractmethod
    async def is_held(self, name: str) -> bool:
        """Return whether a lease of this name is held now; raises BrokerUnreachable, BrokerRefused."""

    @abstractmethod
    async def list_held(self, kind: str, *, after: Lease | None = None) -> frozenset[str]:
        """Return the names of all held leases that begin with `<kind>:`, by one request to the broker.

        With `after`, a lease of this process, the answer certainly has all that were acquired before it.
        `kind` is a few lower-case letters. Raises BrokerUnreachable, BrokerRefused.
        """


class WorkQueue(StrEnum):
    """The queues of work; each queue coalesces wake-ups by key."""

    TURN = "turn"
    DELIVER = "deliver"
    HOOK = "hook"


class WakeUp(Protocol):
    """A hint to check `key` of `account` in SQL; a lost or repeated wake-up does no harm."""

    account: str
    key: str

    @abstractmethod
    async def ack(self) -> None:
        """Confirm that the wake-up was received; one sent since then arrives separately.

        Best effort: raises nothing. A wake-up whose confirmation was lost arrives again.
        """


class WakeUps(Protocol):
    """Wake-ups among all replicas; each goes to one subscriber of its queue."""

    @abstractmethod
    async def publish(self, queue: WorkQueue, key: str, *, account: str) -> None:
        """Send a wake-up, best effort: raises nothing when the broker is away (the janitor repeats it).

        `account` owns the work: pools are shared fairly among accounts.
        """

    @abstractmethod
    async def publish_at(self, queue: WorkQueue, key: str, moment: datetime, *, account: str) -> None:
        """Send a wake-up at a moment; a second call for the same key replaces the first.

        `moment` has a time zone. Best effort: raises nothing when the broker is away.
        """

    @abstractmethod
    def subscribe(self, queue: WorkQueue, *, at_most: int, stop: asyncio.Event) -> AsyncIterator[WakeUp]:
        """Yield wake-ups until `stop`, at most `at_most` unacknowledged ones; survives broker restarts.

        Raises BrokerUnreachable only if the connection to the broker is closed when the iteration begins.
        """


class SendWakeUp(Protocol):
    """Sends a wake-up soon, or at a moment; never blocks and never raises."""

    def __call__(self, queue: WorkQueue, key: str, moment: datetime | None = None, *, account: str) -> None:
        """Wake the worker of a key that belongs to an account, now or at a moment. Raises nothing."""
