"""Leases on the broker: exclusive rights that expire by the broker's clock and move by compare-and-set.

A lease is one message on a subject of its own in EVENTS. Acquiring expects no message there; renewing expects
our own; the broker forgets the message when its time to live is over. A released lease leaves a short-lived
record that says so, by which a successor takes over at once; it is never purged, since a purge could hit the
successor. Our own clock decides only one thing: when to stop believing in the lease before the broker can.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from delivery.broker.connection import NatsConnection
from delivery.broker.message_codec import EXPECTED, ROLLUP, TTL
from delivery.broker.port import Lease, Leases
from delivery.broker.stream_config import EVENTS, subject_token
from delivery.errors import (
    AppendConflict,
    BrokerRefused,
    BrokerUnreachable,
    DeliveryError,
    LeaseBusy,
    LeaseLost,
)

_log = logging.getLogger(__name__)

SAFETY_MARGIN = 0.2
"""Seconds before its expiry at which a lease is no longer trusted."""
_RENEWALS = 3
_NO_MESSAGE = 10037
_RELEASED = "released"
_ACQUIRE_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """Who we are: `instance` outlives restarts, `boot` does not.

    `sole` says that no other process of this instance can be alive (we hold its data directory's lock), so
    leases of its earlier boots are free.
    """

    instance: str
    boot: str
    sole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredLease:
    """What stands on a lease's subject."""

    seq: int
    value: dict[str, Any]


class HeldLease(Lease):
    """A lease we hold; kept alive by `JetStreamLeases.hold`."""

    def __init__(self, name: str, subject: str, ttl: float) -> None:
        self.name = name
        self.subject = subject
        self.ttl = ttl
        self.nonce = secrets.token_hex(8)
        self.seq = 0
        self._trusted_until = 0.0
        self._lost = asyncio.Event()

    def extend(self, seq: int, sent: float) -> None:
        """Note a renewal that was sent at the monotonic moment `sent`."""
        self.seq = seq
        self._trusted_until = sent + self.ttl - SAFETY_MARGIN

    def lose(self) -> None:
        """Give up believing in the lease."""
        self._lost.set()

    @property
    def remaining(self) -> float:
        """Seconds for which the lease can still be trusted."""
        return self._trusted_until - monotonic()

    def ensure_held(self) -> None:
        """Raise LeaseLost unless the right is certainly still ours."""
        if self._lost.is_set() or self.remaining <= 0:
            self._lost.set()
            raise LeaseLost(f"the lease {self.name} is no longer ours")

    async def wait_lost(self) -> None:
        """Return when the lease is lost."""
        await self._lost.wait()


class JetStreamLeases(Leases):
    """Leases in the stream EVENTS, subject `lease.<kind>.<hash>`; the kind is what stands before a colon."""

    def __init__(self, nats: NatsConnection, holder: LeaseHolder) -> None:
        self._nats = nats
        self._holder = holder
        self._own_nonces: set[str] = set()
        self._releasing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def acquire(self, name: str, *, ttl: float = 6.0) -> AsyncIterator[Lease]:
        """Acquire, renew every ttl/3, release on exit. Raises Busy, Unreachable, Refused."""
        lease = HeldLease(name, lease_subject(name), ttl)
        self._own_nonces.add(lease.nonce)
        try:
            await self._acquire(lease)
        except BaseException:
            self._own_nonces.discard(lease.nonce)
            raise
        stop = asyncio.Event()
        keeping = asyncio.create_task(self._renew_regularly(lease, stop))
        try:
            yield lease
        finally:
            # By Event and shielded: a cancelled keeper could go on renewing, a cancelled release would make
            # the successor wait for the expiry.
            stop.set()
            ending = asyncio.create_task(self._release(lease, keeping))
            self._releasing.add(ending)
            ending.add_done_callback(self._releasing.discard)
            await asyncio.shield(ending)

    async def is_held(self, name: str) -> bool:
        """Look what stands on the lease's subject. Raises Unreachable, Refused."""
        found = await self._read(lease_subject(name))
        return found is not None and found.value.get("state") != _RELEASED

    async def _acquire(self, lease: HeldLease) -> None:
        expected = 0
        for _ in range(_ACQUIRE_TRIES):
            sent = monotonic()
            try:
                lease.extend(await self._write(lease, expected), sent)
            except AppendConflict:
                found = await self._read(lease.subject)
                if found is not None and found.value.get("nonce") == lease.nonce:
                    lease.extend(found.seq, sent)  # an earlier try of ours whose answer was lost
                    return
                expected = self._takeover_seq(lease, found)
            else:
                return
        raise LeaseBusy(f"the lease {lease.name} is contended")

    def _takeover_seq(self, lease: HeldLease, found: _StoredLease | None) -> int:
        if found is None:
            return 0
        value = found.value
        if value.get("state") == _RELEASED or self._is_abandoned(value):
            return found.seq
        raise LeaseBusy(f"the lease {lease.name} is held by {value.get('instance')}")

    def _is_abandoned(self, value: dict[str, Any]) -> bool:
        """Whether it was left by an earlier boot of ours, or by an acquisition of ours that timed out."""
        if value.get("instance") != self._holder.instance:
            return False
        if value.get("boot") == self._holder.boot:
            return value.get("nonce") not in self._own_nonces
        return self._holder.sole

    async def _write(
        self, lease: HeldLease, expected: int, *, state: str = "held", ttl: float | None = None
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
        ack = await self._nats.publish(
            lease.subject, json.dumps(value).encode(), headers, timeout=max(lease.ttl / 6, 0.3), tries=2
        )
        return ack.seq

    async def _read(self, subject: str) -> _StoredLease | None:
        answer = await self._nats.api_request(
            f"STREAM.MSG.GET.{EVENTS}", {"last_by_subj": subject}, timeout=2
        )
        error = answer.get("error")
        if error is None:
            message = answer["message"]
            return _StoredLease(seq=message["seq"], value=_decode(message.get("data", "")))
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
            pause = await self._renew(lease)
            if lease.remaining <= 0:
                lease.lose()
                _log.warning("lost the lease %s", lease.name)
                return

    async def _renew(self, lease: HeldLease) -> float:
        """Try once; return how long to wait before the next try. On loss nothing remains of the lease."""
        sent = monotonic()
        try:
            lease.extend(await self._write(lease, lease.seq), sent)
        except AppendConflict:
            await self._check_still_held(lease)
            return 0.0
        except (BrokerUnreachable, BrokerRefused):
            return 0.1
        return lease.ttl / _RENEWALS

    async def _check_still_held(self, lease: HeldLease) -> None:
        """A refused renewal proves nothing: an earlier one may have been stored although it timed out."""
        with suppress(DeliveryError):
            found = await self._read(lease.subject)
            if found is not None and found.value.get("nonce") == lease.nonce:
                lease.seq = found.seq
                return
            lease.extend(0, monotonic() - lease.ttl)

    async def _release(self, lease: HeldLease, renewing: asyncio.Task[None]) -> None:
        await renewing
        if lease.remaining > 0:
            with suppress(DeliveryError):
                await self._write(lease, lease.seq, state=_RELEASED, ttl=1.0)
        lease.lose()
        self._own_nonces.discard(lease.nonce)


def lease_subject(name: str) -> str:
    """Return where a lease stands: its kind for the eye, its hash for the rest."""
    kind, colon, _ = name.partition(":")
    kind = kind if colon and kind.isascii() and kind.isalpha() else "any"
    return f"lease.{kind.lower()}.{subject_token(name)}"


def _decode(encoded: str) -> dict[str, Any]:
    try:
        value = json.loads(base64.b64decode(encoded))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class MemoryLeases(Leases):
    """Leases in one process, for tests: `revoke` plays the expiry."""

    def __init__(self) -> None:
        self._held: dict[str, HeldLease] = {}

    @asynccontextmanager
    async def acquire(self, name: str, *, ttl: float = 6.0) -> AsyncIterator[Lease]:
        """Acquire at once or raise Busy."""
        if name in self._held:
            raise LeaseBusy(f"the lease {name} is held")
        lease = self._held[name] = HeldLease(name, lease_subject(name), ttl)
        lease.extend(1, float("inf"))
        try:
            yield lease
        finally:
            if self._held.get(name) is lease:
                del self._held[name]
            lease.lose()

    async def is_held(self, name: str) -> bool:
        """Say whether the name is held."""
        return name in self._held

    def revoke(self, name: str) -> None:
        """Take a lease away, as if it had expired."""
        self._held.pop(name).lose()
