"""A lease as its holder sees it: until when it can be trusted, and who learns that it is lost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from delivery.broker.port import Lease
from delivery.errors import LeaseLost

SAFETY_MARGIN = 0.2
"""Seconds before the expiry from which a lease is no longer trusted."""


class HeldLease(Lease):
    """A lease that this process holds; renewed inside `JetStreamLeases.acquire`.

    `subject` is where it is stored. With a session it is held only while the session is. `failure` says why
    the last renewal failed.
    """

    def __init__(self, name: str, subject: str, ttl: float, session: HeldLease | None = None) -> None:
        self.name = name
        self.subject = subject
        self.ttl = ttl
        self.session = session
        self.nonce = secrets.token_hex(8)
        self.seq = 0
        self.failure = ""
        self._trusted_until = 0.0
        self._is_lost = False
        self._lost = asyncio.Event()
        self._reports: set[Callable[[], None]] = set()
        self._loop = asyncio.get_running_loop()

    def extend(self, seq: int, sent: float) -> None:
        """Record a renewal that was sent at the monotonic moment `sent`."""
        self.seq = seq
        self.failure = ""
        self._trusted_until = sent + self.ttl - SAFETY_MARGIN

    def taken(self) -> None:
        """Record that another holder has acquired the lease, or that it expired in the broker."""
        self.failure = "the broker has another holder, or none"
        self._trusted_until = 0.0

    def lose(self) -> None:
        """Mark the lease as lost; may be called in another thread."""
        self._is_lost = True
        with suppress(RuntimeError):  # the loop of the holder is closed
            self._loop.call_soon_threadsafe(self._report_lost)

    def end(self) -> None:
        """Mark the lease as lost; called in the holder's event loop, which `lose` would have to wake."""
        self._is_lost = True
        self._report_lost()

    def _report_lost(self) -> None:
        self._lost.set()
        for report in tuple(self._reports):
            report()

    @property
    def remaining(self) -> float:
        """The seconds for which the lease can still be trusted."""
        return self._trusted_until - monotonic()

    @property
    def is_trusted(self) -> bool:
        """Whether the lease, and its session, are certainly still held."""
        if self._is_lost or self.remaining <= 0:
            return False
        return self.session is None or self.session.is_trusted

    def ensure_held(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held."""
        if not self.is_trusted:
            self.lose()
            raise LeaseLost(f"the lease {self.name} was lost")

    async def wait_lost(self) -> None:
        """Return when the lease is lost."""
        await self._lost.wait()

    def on_lost(self, report: Callable[[], None]) -> Callable[[], None]:
        """Call `report` when the lease is lost, also if it is lost already."""
        self._reports.add(report)
        if self._lost.is_set():
            self._loop.call_soon(report)
        return partial(self._reports.discard, report)


def as_session(lease: Lease | None) -> HeldLease | None:
    """Return a lease as what `Leases.acquire` has yielded."""
    assert lease is None or isinstance(lease, HeldLease), "only a lease of Leases has what the broker stores"
    return lease
