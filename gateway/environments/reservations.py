"""The register of sandboxes on SQL: each change one entry of the ledger, with event and seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database, Unavailable
from delivery.deliveries.transactions import Entry, Ledger
from delivery.events.event import Event, Kind
from gateway.infra.replica_presence import Presence
from gateway.observability.metrics import Metrics
from gateway.store import sandboxes
from gateway.store.accounts import usage
from gateway.store.accounts.usage import Amount, Used
from gateway.store.conversations import conversations
from gateway.store.sandboxes import Held
from sandbox.errors import Unreachable
from sandbox.lifecycle.locks import Leases
from sandbox.lifecycle.reservations import Register, Reservation


class SqlRegister(Register):
    """Rows of the table `sandboxes`."""

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self._ledger = ledger
        self._metrics = metrics

    async def find(self, label: str) -> Reservation | None:
        """Return the row of a label."""
        async with self._ledger.database.read() as connection:
            return await sandboxes.find(connection, label)

    async def add(self, row: Reservation) -> bool:
        """Insert a row; False when the label has one."""
        async with self._ledger.entry("sandbox.reserve") as entry:
            return await sandboxes.add(entry.connection, row)

    async def swap(self, before: Reservation, after: Reservation, *, step: str, why: str) -> bool:
        """Change a row, tell of what that means, and count the seconds of a stretch that ends."""
        async with self._ledger.entry(step) as entry:
            if not await sandboxes.swap(entry.connection, before, after):
                return False
            await self._ended(entry, before, after, why)
            if before.active_since is None and after.active_since is not None:
                await _tell(entry, after, Kind.SANDBOX_STARTED, why)
        return True

    async def drop(self, row: Reservation, *, step: str, why: str) -> bool:
        """Delete a row, tell of a machine that ends with it, and end its stretch."""
        async with self._ledger.entry(step) as entry:
            if not await sandboxes.drop(entry.connection, row):
                return False
            await self._ended(entry, row, None, why)
            if row.active_since is None and row.sandbox is not None:
                await _tell(entry, row, Kind.SANDBOX_STOPPED, why)
        return True

    async def _ended(self, entry: Entry, before: Reservation, after: Reservation | None, why: str) -> None:
        if before.active_since is None or (after is not None and after.active_since is not None):
            return
        now = utc_now()
        await end_stretch(entry, before, why, now)
        seconds = (now - before.active_since).total_seconds()
        self._metrics.count("sandbox_seconds", seconds, provider=before.provider, reason=why)
        asleep = after is not None and after.paused
        await _tell(entry, before, Kind.SANDBOX_SUSPENDED if asleep else Kind.SANDBOX_STOPPED, why)

    async def touch(self, label: str, conversation: str, now: datetime) -> None:
        """Reset the idle timer."""
        async with self._ledger.database.begin() as connection:
            await sandboxes.touch(connection, label, conversation, now)

    async def every(self) -> Sequence[Reservation]:
        """Return all rows."""
        async with self._ledger.database.read() as connection:
            return await sandboxes.every(connection)


async def end_stretch(entry: Entry, row: Reservation, why: str, now: datetime) -> None:
    """Write down the seconds of a stretch that ends now."""
    assert row.active_since is not None
    used = Used(
        id=f"{row.label[-26:]}.{row.lock_version}.{int(row.active_since.timestamp() * 1000)}",
        account=row.owner.account,
        agent=row.owner.agent,
        conversation=row.owner.conversation,
        kind="sandbox",
        what=row.provider,
        reason=why,
        amount=Amount(seconds=max((now - row.active_since).total_seconds(), 0.0)),
        started_at=row.active_since,
        ended_at=now,
    )
    await usage.record(entry.connection, used)


async def _tell(entry: Entry, row: Reservation, kind: Kind, why: str) -> None:
    """Tell the conversation that caused it, if it still exists; of a passing sandbox nothing is told."""
    conversation = row.owner.conversation
    if not row.persistent or await conversations.by_id(entry.connection, conversation) is None:
        return
    told = {
        "sandbox": row.label,
        "provider": row.provider,
        "scope": str(row.owner.scope),
        "boot": row.boot,
        "reason": why,
    }
    entry.tell(Event.now(kind, conversation, told))


class SqlLeases(Leases):
    """Leases in the table `sandbox_leases`.

    What stands under our name and is not held here was left by a call that was cut short, and is free; so is
    what a process held that is gone, as far as the holder's `presence` can say.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        *,
        presence: Presence | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._holder = holder
        self._presence = presence
        self._clock = clock

    async def take(self, label: str, *, ttl: float) -> int | None:
        """Take the lease if it is free, or was left by ourselves or by a replica that is gone.

        Nothing is taken while the others may think that this one is gone.
        """
        if self._presence is not None and not self._presence.is_certain:
            return None
        async with self._database.begin() as connection:
            fence = await self._take(connection, label, ttl)
            held = None if fence is not None else await sandboxes.lease_of(connection, label)
        if held is None or self._presence is None or not await self._presence.is_gone(held.holder):
            return fence
        async with self._database.begin() as connection:
            return await self._take(connection, label, ttl, left=held)

    async def _take(
        self, connection: Connection, label: str, ttl: float, *, left: Held | None = None
    ) -> int | None:
        return await sandboxes.take_lease(
            connection, label, holder=self._holder, now=self._clock(), ttl=ttl, left=left
        )

    async def renew(self, label: str, fence: int, *, ttl: float) -> bool:
        """Go on holding it."""
        try:
            async with self._database.begin() as connection:
                until = self._clock() + timedelta(seconds=ttl)
                return await sandboxes.renew_lease(connection, label, fence, until=until)
        except Unavailable as error:
            raise Unreachable(str(error)) from error

    async def leave(self, label: str, fence: int) -> None:
        """Give it up."""
        async with self._database.begin() as connection:
            await sandboxes.leave_lease(connection, label, fence)
