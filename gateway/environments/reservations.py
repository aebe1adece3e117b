"""Reservations of sandboxes in SQL: every change emits its event and records usage in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType
from gateway.infra.replica_presence import ReplicaPresence
from gateway.observability.metrics import Metrics
from gateway.store import sandboxes
from gateway.store.accounts import usage
from gateway.store.accounts.usage import Amount, UsageKind, UsageRow
from gateway.store.conversations import conversations
from gateway.store.sandboxes import LockRow
from sandbox.errors import ProviderUnreachable
from sandbox.lifecycle.locks import LockStore
from sandbox.lifecycle.reservations import Reservation, ReservationStore


class SqlReservations(ReservationStore):
    """Rows of the table `sandboxes`."""

    def __init__(self, transactions: Transactions, metrics: Metrics) -> None:
        self._transactions = transactions
        self._metrics = metrics

    async def get(self, label: str) -> Reservation | None:
        """Return the row of a label."""
        async with self._transactions.database.read() as connection:
            return await sandboxes.get(connection, label)

    async def count_jobs(self, row: Reservation) -> int:
        """Return how many jobs run in the sandbox of a row."""
        async with self._transactions.database.read() as connection:
            return len(await sandboxes.list_running_jobs(connection, row))

    async def add(self, row: Reservation) -> bool:
        """Insert a row; False when the label has one."""
        async with self._transactions.begin("sandbox.reserve") as tx:
            return await sandboxes.add(tx.connection, row)

    async def compare_and_set(
        self, before: Reservation, after: Reservation, *, step: str, reason: str
    ) -> bool:
        """Change a row, emit its event, and record the seconds of an activity span that ends."""
        async with self._transactions.begin(step) as tx:
            if not await sandboxes.compare_and_set(tx.connection, before, after):
                return False
            await self._record_end(tx, before, after, reason)
            if before.active_since is None and after.active_since is not None:
                await _emit(tx, after, EventType.SANDBOX_STARTED, reason)
        return True

    async def delete(self, row: Reservation, *, step: str, reason: str) -> bool:
        """Delete a row, emit the stop of its sandbox, and record its activity span."""
        async with self._transactions.begin(step) as tx:
            if not await sandboxes.delete_reservation(tx.connection, row):
                return False
            await self._record_end(tx, row, None, reason)
            if row.active_since is None and row.sandbox is not None:
                await _emit(tx, row, EventType.SANDBOX_STOPPED, reason)
        return True

    async def _record_end(
        self, tx: Transaction, before: Reservation, after: Reservation | None, reason: str
    ) -> None:
        if before.active_since is None or (after is not None and after.active_since is not None):
            return
        now = utc_now()
        await record_usage_span(tx, before, reason, now)
        seconds = (now - before.active_since).total_seconds()
        self._metrics.count("sandbox_seconds", seconds, provider=before.provider, reason=reason)
        suspended = after is not None and after.paused
        await _emit(
            tx, before, EventType.SANDBOX_SUSPENDED if suspended else EventType.SANDBOX_STOPPED, reason
        )

    async def touch(self, label: str, conversation: str, now: datetime) -> None:
        """Reset the idle timer."""
        async with self._transactions.database.begin() as connection:
            await sandboxes.touch(connection, label, conversation, now)

    async def list_all(self) -> Sequence[Reservation]:
        """Return all rows."""
        async with self._transactions.database.read() as connection:
            return await sandboxes.list_all(connection)

    async def list_live(self, *, ending: str) -> Sequence[Reservation]:
        """Return the rows with an instance or in creation, and others whose label ends with `ending`."""
        async with self._transactions.database.read() as connection:
            return await sandboxes.list_live(connection, ending=ending)

    async def list_unsaved(self, provider: str) -> Sequence[Reservation]:
        """Return the rows of a provider whose instance was used since its newest snapshot."""
        async with self._transactions.database.read() as connection:
            return await sandboxes.list_unsaved(connection, provider)


async def record_usage_span(tx: Transaction, row: Reservation, reason: str, now: datetime) -> None:
    """Record the seconds of an activity span that ends now."""
    assert row.active_since is not None
    span = UsageRow(
        id=f"{row.label[-26:]}.{row.lock_version}.{int(row.active_since.timestamp() * 1000)}",
        account=row.owner.account,
        agent=row.owner.agent,
        conversation=row.owner.conversation,
        kind=UsageKind.SANDBOX,
        what=row.provider,
        reason=reason,
        amount=Amount(seconds=max((now - row.active_since).total_seconds(), 0.0)),
        started_at=row.active_since,
        ended_at=now,
    )
    await usage.record(tx.connection, span)


async def _emit(tx: Transaction, row: Reservation, kind: EventType, reason: str) -> None:
    """Emit to the conversation that caused it, if it still exists; only for persistent sandboxes."""
    conversation = row.owner.conversation
    if not row.persistent or await conversations.get_by_id(tx.connection, conversation) is None:
        return
    data = {
        "sandbox": row.label,
        "provider": row.provider,
        "scope": str(row.owner.scope),
        "boot": row.boot,
        "reason": reason,
    }
    tx.emit(Event.now(kind, conversation, data))


class SqlLocks(LockStore):
    """Sandbox locks in the table `sandbox_leases`.

    A lock that is stored under this holder's name but not held was left by an interrupted call and counts
    as free. A lock of a replica that `presence` reports as dead counts as free too.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        *,
        presence: ReplicaPresence | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._holder = holder
        self._presence = presence
        self._clock = clock

    async def acquire(self, label: str, *, ttl: float) -> int | None:
        """Acquire the lock if it is free, or was left by this replica or by one that is dead.

        Returns None while the other replicas may consider this one dead.
        """
        if self._presence is not None and not self._presence.is_confirmed:
            return None
        async with self._database.begin() as connection:
            fence = await self._try_acquire(connection, label, ttl)
            present = None if fence is not None else await sandboxes.get_lock(connection, label)
        if present is None or self._presence is None or not await self._presence.is_dead(present.holder):
            return fence
        async with self._database.begin() as connection:
            return await self._try_acquire(connection, label, ttl, abandoned=present)

    async def _try_acquire(
        self, connection: Connection, label: str, ttl: float, *, abandoned: LockRow | None = None
    ) -> int | None:
        return await sandboxes.acquire_lock(
            connection, label, holder=self._holder, now=self._clock(), ttl=ttl, abandoned=abandoned
        )

    async def renew(self, label: str, fence: int, *, ttl: float) -> bool:
        """Extend the lock; returns False when another holder has acquired it."""
        try:
            async with self._database.begin() as connection:
                until = self._clock() + timedelta(seconds=ttl)
                return await sandboxes.renew_lock(connection, label, fence, until=until)
        except DatabaseUnavailable as error:
            raise ProviderUnreachable(str(error)) from error

    async def release(self, label: str, fence: int) -> None:
        """Release the lock."""
        async with self._database.begin() as connection:
            await sandboxes.release_lock(connection, label, fence)
