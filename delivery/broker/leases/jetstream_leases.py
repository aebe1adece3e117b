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
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog

from delivery.background import log_errors, run_shielded
from delivery.broker.connection import NatsConnection
from delivery.broker.leases.held_lease import HeldLease, as_session
from delivery.broker.leases.lease_watch import RELEASED, LeaseWatch, decode_lease, lease_subject
from delivery.broker.leases.renewal_thread import RenewalThread
from delivery.broker.message_codec import EXPECTED, ROLLUP, TTL
from delivery.broker.port import Lease, Leases, LocalLease
from delivery.broker.stream_config import EVENTS
from delivery.errors import (
    AppendConflict,
    BrokerRefused,
    BrokerUnreachable,
    DeliveryError,
    LeaseBusy,
)

_log = structlog.get_logger(__name__)

_RENEWALS = 3
_RETRY_SECONDS = 0.1
_NO_MESSAGE = 10037
_ACQUIRE_TRIES = 3
_MAX_WRITE_SECONDS = 2.0


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
    async def acquire(
        self, name: str, *, ttl: float = 6.0, session: Lease | None = None
    ) -> AsyncIterator[Lease]:
        """Acquire a lease, renew it every ttl/3, and release it on exit.

        Raises LeaseBusy, BrokerUnreachable, BrokerRefused.
        """
        lease = HeldLease(name, lease_subject(name), ttl, as_session(session))
        async with self._hold(lease):
            if lease.session is None:
                yield lease
                return
            unwatch = lease.session.on_lost(lease.lose)
            try:
                yield lease
            finally:
                unwatch()

    @asynccontextmanager
    async def _hold(self, lease: HeldLease) -> AsyncIterator[None]:
        self._own_nonces.add(lease.nonce)
        try:
            await self._acquire(lease)
        except BaseException:
            self._own_nonces.discard(lease.nonce)
            raise
        stop = asyncio.Event()
        renewing = self._start_renewing(lease, stop)
        try:
            yield
        finally:
            # By Event and shielded: a cancelled renewal could continue, and after a cancelled release the
            # successor would have to wait for the expiry.
            self._stop_renewing(stop)
            releasing = asyncio.create_task(self._release(lease, renewing))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)
            await run_shielded(releasing)

    def _start_renewing(self, lease: HeldLease, stop: asyncio.Event) -> asyncio.Future[None]:
        """Renew a lease until `stop`, in the thread if there is one; it then owns the event."""
        renewing = self._renew_regularly(lease, stop)
        return self._renewals.submit(renewing) if self._renewals else asyncio.create_task(renewing)

    def watch(self, name: str) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set once the lease may be acquired."""
        return self._watch.watch(lease_subject(name))

    async def list_held(self, kind: str, *, after: Lease | None = None) -> frozenset[str]:
        """Return the names of the held leases of a kind. Raises BrokerUnreachable, BrokerRefused."""
        lease = as_session(after)
        if lease is None:
            return await self._watch.list_held(kind)
        return await self._watch.list_held_after(kind, lease.subject, lease.seq)

    def acquire_locally(self, name: str) -> LocalLease | None:  # noqa: ARG002
        """Return None: another replica may hold the lease."""
        return None

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
                expected = await self._takeover_seq(lease, stored)
            else:
                return
        raise LeaseBusy(f"the lease {lease.name} is contended")

    async def _takeover_seq(self, lease: HeldLease, stored: _StoredLease | None) -> int:
        if stored is None:
            return 0
        value = stored.value
        if value.get("state") == RELEASED or self._is_abandoned(value):
            return stored.seq
        if await self._has_lost_session(value):
            return stored.seq
        raise LeaseBusy(f"the lease {lease.name} is held by {value.get('instance')}")

    def _is_abandoned(self, value: dict[str, Any]) -> bool:
        """Return whether an earlier boot, or an acquisition of this boot that timed out, left the lease."""
        if value.get("instance") != self._holder.instance:
            return False
        if value.get("boot") == self._holder.boot:
            return value.get("nonce") not in self._own_nonces
        return self._holder.sole

    async def _has_lost_session(self, value: dict[str, Any]) -> bool:
        """Return whether the session of a stored lease has ended; the broker's leader answers that."""
        session = value.get("session")
        if session is None:
            return False
        stored = await self._read(lease_subject(session["name"]))
        if stored is None or stored.value.get("state") == RELEASED:
            return True
        return bool(stored.value.get("nonce") != session["nonce"])

    async def _write(
        self,
        lease: HeldLease,
        expected: int,
        *,
        state: str = "held",
        ttl: float | None = None,
        nats: NatsConnection | None = None,
    ) -> int:
        value: dict[str, Any] = {
            "instance": self._holder.instance,
            "boot": self._holder.boot,
            "nonce": lease.nonce,
            "state": state,
            "name": lease.name,
        }
        if lease.session is not None:
            value["session"] = {"name": lease.session.name, "nonce": lease.session.nonce}
        headers = {
            EXPECTED: str(expected),
            ROLLUP: "sub",
            TTL: f"{max(1, round((ttl or lease.ttl) * 1000))}ms",
        }
        ack = await (nats or self._nats).publish(
            lease.subject, json.dumps(value).encode(), headers, timeout=_write_timeout(lease.ttl), tries=2
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
                _log.warning("lease.lost", lease=lease.name, reason=lease.failure or "not renewed in time")
                return

    async def _renew(self, lease: HeldLease) -> float:
        """Try to renew once; return the seconds until the next try. A lost lease has no time remaining."""
        if self._renewals and not self._renewals.main_loop_runs:
            lease.failure = "the event loop of this process is blocked"
            return _RETRY_SECONDS
        sent = monotonic()
        try:
            lease.extend(await self._write(lease, lease.seq, nats=self._renewing_nats), sent)
        except AppendConflict:
            await self._check_still_held(lease)
            return 0.0
        except (BrokerUnreachable, BrokerRefused) as error:
            lease.failure = str(error)
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
        if lease.is_trusted:
            with log_errors("leases.release", lease=lease.name):  # the lease then expires by itself
                await self._write(lease, lease.seq, state=RELEASED, ttl=1.0)
        lease.end()
        self._own_nonces.discard(lease.nonce)


def _write_timeout(ttl: float) -> float:
    """Return the seconds to wait for the broker's confirmation of a lease: long leases can be tried again."""
    return min(max(ttl / 6, 0.3), _MAX_WRITE_SECONDS)
