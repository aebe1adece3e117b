"""Leases on the broker: exclusive rights that expire by the broker's clock and move by compare-and-set.

A lease is one message on its own subject in EVENTS. Acquiring expects no message there, renewing expects the
holder's own message, and the broker deletes the message when its time to live is over. A release writes a
short-lived `released` record, so that a successor can take over at once. The subject is never purged, because
a purge could delete the successor's message. The local clock decides only when to stop trusting the lease,
which is before the broker lets it expire.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import structlog

from delivery.background import log_errors
from delivery.broker.connection import NatsConnection
from delivery.broker.lease_watch import RELEASED, LeaseWatch, decode_lease, lease_subject
from delivery.broker.message_codec import EXPECTED, ROLLUP, TTL
from delivery.broker.port import Lease, Leases
from delivery.broker.renewal_thread import RenewalThread
from delivery.broker.stream_config import EVENTS
from delivery.errors import (
    AppendConflict,
    BrokerRefused,
    BrokerUnreachable,
    DeliveryError,
    LeaseBusy,
    LeaseLost,
)

_log = structlog.get_logger(__name__)

SAFETY_MARGIN = 0.2
"""Seconds before the expiry from which a lease is no longer trusted."""
_RENEWALS = 3
_RETRY_SECONDS = 0.1
_NO_MESSAGE = 10037
_ACQUIRE_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The identity of this process: `instance` stays the same over restarts, `boot` does not.

    `sole`: no other process of this instance can be alive, because this one has locked the data directory.
    Leases of earlier boots are then free.
    """

    instance: str
    boot: str
    sole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredLease:
    """The message on a lease's subject."""

    seq: int
    value: dict[str, Any]


class HeldLease(Lease):
    """A lease that this process holds; renewed inside `JetStreamLeases.acquire`.

    `subject` is where it is stored; a lease in memory has none.
    """

    def __init__(self, name: str, subject: str, ttl: float) -> None:
        self.name = name
        self.subject = subject
        self.ttl = ttl
        self.nonce = secrets.token_hex(8)
        self.seq = 0
        self._trusted_until = 0.0
        self._is_lost = False
        self._lost = asyncio.Event()
        self._reports: set[Callable[[], None]] = set()
        self._loop = asyncio.get_running_loop()

    def extend(self, seq: int, sent: float) -> None:
        """Record a renewal that was sent at the monotonic moment `sent`."""
        self.seq = seq
        self._trusted_until = sent + self.ttl - SAFETY_MARGIN

    def taken(self) -> None:
        """Record that another holder has acquired the lease."""
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

    def ensure_held(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held."""
        if self._is_lost or self.remaining <= 0:
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


class JetStreamLeases(Leases):
    """Leases in the stream EVENTS, subject `lease.<kind>.<hash>`; the kind precedes a colon in the name."""

    def __init__(
        self, nats: NatsConnection, holder: LeaseHolder, renewals: RenewalThread | None = None
    ) -> None:
        self._nats = nats
        self._holder = holder
        self._renewals = renewals
        self._renewing_nats = renewals.connection if renewals else nats
        self._watch = LeaseWatch(nats)
        self._own_nonces: set[str] = set()
        self._releasing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def acquire(self, name: str, *, ttl: float = 6.0) -> AsyncIterator[Lease]:
        """Acquire a lease, renew it every ttl/3, and release it on exit.

        Raises LeaseBusy, BrokerUnreachable, BrokerRefused.
        """
        lease = HeldLease(name, lease_subject(name), ttl)
        self._own_nonces.add(lease.nonce)
        try:
            await self._acquire(lease)
        except BaseException:
            self._own_nonces.discard(lease.nonce)
            raise
        stop = asyncio.Event()
        renewing = self._start_renewing(lease, stop)
        try:
            yield lease
        finally:
            # By Event and shielded: a cancelled renewal could continue, and after a cancelled release the
            # successor would have to wait for the expiry.
            self._stop_renewing(stop)
            releasing = asyncio.create_task(self._release(lease, renewing))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)
            await asyncio.shield(releasing)

    def _start_renewing(self, lease: HeldLease, stop: asyncio.Event) -> asyncio.Future[None]:
        """Renew a lease until `stop`, in the thread if there is one; it then owns the event."""
        renewing = self._renew_regularly(lease, stop)
        return self._renewals.submit(renewing) if self._renewals else asyncio.create_task(renewing)

    def watch(self, name: str) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set once the lease may be acquired."""
        return self._watch.watch(lease_subject(name))

    async def list_held(self, kind: str) -> frozenset[str]:
        """Return the names of the held leases of a kind. Raises BrokerUnreachable, BrokerRefused."""
        return await self._watch.list_held(kind)

    def _stop_renewing(self, stop: asyncio.Event) -> None:
        if self._renewals:
            self._renewals.call(stop.set)
        else:
            stop.set()

    async def is_held(self, name: str) -> bool:
        """Return whether the lease's subject has a held lease. Raises BrokerUnreachable, BrokerRefused."""
        stored = await self._read(lease_subject(name))
        return stored is not None and stored.value.get("state") != RELEASED

    async def _acquire(self, lease: HeldLease) -> None:
        expected = 0
        for _ in range(_ACQUIRE_TRIES):
            sent = monotonic()
            try:
                lease.extend(await self._write(lease, expected), sent)
            except AppendConflict:
                stored = await self._read(lease.subject)
                if stored is not None and stored.value.get("nonce") == lease.nonce:
                    lease.extend(stored.seq, sent)  # an earlier try whose response was lost
                    return
                expected = self._takeover_seq(lease, stored)
            else:
                return
        raise LeaseBusy(f"the lease {lease.name} is contended")

    def _takeover_seq(self, lease: HeldLease, stored: _StoredLease | None) -> int:
        if stored is None:
            return 0
        value = stored.value
        if value.get("state") == RELEASED or self._is_abandoned(value):
            return stored.seq
        raise LeaseBusy(f"the lease {lease.name} is held by {value.get('instance')}")

    def _is_abandoned(self, value: dict[str, Any]) -> bool:
        """Return whether an earlier boot, or an acquisition of this boot that timed out, left the lease."""
        if value.get("instance") != self._holder.instance:
            return False
        if value.get("boot") == self._holder.boot:
            return value.get("nonce") not in self._own_nonces
        return self._holder.sole

    async def _write(
        self,
        lease: HeldLease,
        expected: int,
        *,
        state: str = "held",
        ttl: float | None = None,
        nats: NatsConnection | None = None,
    ) -> int:
        value = {
            "instance": self._holder.instance,
            "boot": self._holder.boot,
            "nonce": lease.nonce,
            "state": state,
            "name": lease.name,
        }
        headers = {
            EXPECTED: str(expected),
            ROLLUP: "sub",
            TTL: f"{max(1, round((ttl or lease.ttl) * 1000))}ms",
        }
        ack = await (nats or self._nats).publish(
            lease.subject, json.dumps(value).encode(), headers, timeout=max(lease.ttl / 6, 0.3), tries=2
        )
        return ack.seq

    async def _read(self, subject: str, nats: NatsConnection | None = None) -> _StoredLease | None:
        response = await (nats or self._nats).api_request(
            f"STREAM.MSG.GET.{EVENTS}", {"last_by_subj": subject}, timeout=2
        )
        error = response.get("error")
        if error is None:
            message = response["message"]
            return _StoredLease(
                seq=message["seq"], value=decode_lease(base64.b64decode(message.get("data", "")))
            )
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise BrokerRefused(f"cannot read a lease: {error.get('description')}")

    async def _renew_regularly(self, lease: HeldLease, stop: asyncio.Event) -> None:
        pause = lease.ttl / _RENEWALS
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(pause, lease.remaining))):
                    await stop.wait()
            if stop.is_set():
                return
            pause = _RETRY_SECONDS
            with log_errors("leases.renew", lease=lease.name):
                pause = await self._renew(lease)
            if lease.remaining <= 0:
                lease.lose()
                _log.warning("lease.lost", lease=lease.name)
                return

    async def _renew(self, lease: HeldLease) -> float:
        """Try to renew once; return the seconds until the next try. A lost lease has no time remaining."""
        if self._renewals and not self._renewals.main_loop_runs:
            return _RETRY_SECONDS
        sent = monotonic()
        try:
            lease.extend(await self._write(lease, lease.seq, nats=self._renewing_nats), sent)
        except AppendConflict:
            await self._check_still_held(lease)
            return 0.0
        except (BrokerUnreachable, BrokerRefused):
            return _RETRY_SECONDS
        return lease.ttl / _RENEWALS

    async def _check_still_held(self, lease: HeldLease) -> None:
        """Check the stored lease after a conflict: an earlier renewal that timed out may have been stored."""
        with suppress(DeliveryError):
            stored = await self._read(lease.subject, self._renewing_nats)
            if stored is not None and stored.value.get("nonce") == lease.nonce:
                lease.seq = stored.seq
            else:
                lease.taken()

    async def _release(self, lease: HeldLease, renewing: asyncio.Future[None]) -> None:
        await renewing
        if lease.remaining > 0:
            with log_errors("leases.release", lease=lease.name):  # the lease then expires by itself
                await self._write(lease, lease.seq, state=RELEASED, ttl=1.0)
        lease.end()
        self._own_nonces.discard(lease.nonce)


class MemoryLeases(Leases):
    """Leases of a process that has its broker and its database to itself.

    No other process could acquire them, so they do not expire, however late this process is. They end with
    the process. `revoke` simulates an expiry, for tests.
    """

    def __init__(self) -> None:
        self._held: dict[str, HeldLease] = {}
        self._watched: defaultdict[str, list[asyncio.Event]] = defaultdict(list)

    @asynccontextmanager
    async def acquire(self, name: str, *, ttl: float = 6.0) -> AsyncIterator[Lease]:
        """Acquire a lease at once or raise LeaseBusy."""
        if name in self._held:
            raise LeaseBusy(f"the lease {name} is held by this process")
        lease = self._held[name] = HeldLease(name, "", ttl)
        lease.extend(1, float("inf"))
        try:
            yield lease
        finally:
            if self._held.get(name) is lease:
                del self._held[name]
                self._report_free(name)
            lease.end()

    def _report_free(self, name: str) -> None:
        for freed in self._watched.pop(name, ()):
            freed.set()

    @contextmanager
    def watch(self, name: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the lease is released; at once if it is free."""
        freed = asyncio.Event()
        if name in self._held:
            self._watched[name].append(freed)
        else:
            freed.set()
        yield freed

    async def is_held(self, name: str) -> bool:
        """Return whether the lease is held."""
        return name in self._held

    async def list_held(self, kind: str) -> frozenset[str]:
        """Return the names of the held leases of a kind."""
        return frozenset(name for name in self._held if name.startswith(f"{kind}:"))

    def revoke(self, name: str) -> None:
        """End a lease, as if it had expired."""
        self._held.pop(name).end()
        self._report_free(name)
