"""The delivery worker: claims the due deliveries of one destination at a time and sends them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

import structlog

from delivery.background import log_errors
from delivery.broker.keyed_worker import KeyedWorker
from delivery.broker.port import Lease, Leases, WakeUps
from delivery.database.clock import utc_now
from delivery.deliveries import destinations, ordering, store
from delivery.deliveries.attempt import DeliveryState, Transition
from delivery.deliveries.destinations import DestinationState
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transactions
from delivery.events.event import EventType
from delivery.fair_gate import FairGate, current_account
from delivery.fair_scheduler import PoolSize
from delivery.workers import reports
from delivery.workers.attempts import Attempts, ClaimedDelivery, EndedSend
from delivery.workers.immediate_sends import ImmediateSends
from delivery.workers.send_receipts import SendReceipts
from delivery.workers.sends_in_flight import BATCH, ConcurrentSends, InFlight
from delivery.workers.sink_config import SinkConfig

log = structlog.get_logger(__name__)

DEFAULT_SIZE = PoolSize(places=64)


class DeliveryWorker:
    """Sends the deliveries of one kind; among all replicas one worker at a time handles a destination.

    `receipts` records what a platform has accepted before the database does, and keeps it over a crash.
    """

    def __init__(
        self,
        config: SinkConfig,
        *,
        transactions: Transactions,
        leases: Leases,
        wake_ups: WakeUps,
        checkpoint: Callable[[str], None],
        receipts: SendReceipts | None = None,
        size: PoolSize = DEFAULT_SIZE,
        lease_ttl: float = 6.0,
    ) -> None:
        self._config = config
        self._receipts = receipts
        self._transactions = transactions
        self._leases = leases
        self._lease_ttl = lease_ttl
        self._attempts = Attempts(config, transactions, checkpoint, receipts)
        self._sending = FairGate(size)
        self._keyed_worker = KeyedWorker(
            config.queue, wake_ups, self._work, wake=transactions.wake_soon, size=size
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Handle wake-ups until `stop`; sends in progress are finished first."""
        self._stop = stop
        await self._recover_receipts()
        await self._keyed_worker.run(stop)

    async def _recover_receipts(self) -> None:
        """Record the receipts that an earlier process could not write to the database."""
        if self._receipts is None:
            return
        pending = [receipt.delivery for receipt in self._receipts.pending]
        with log_errors("receipts"):  # after an error each receipt is used when its delivery is attempted
            async with self._transactions.database.read() as connection:
                dues = await store.list_in_flight(connection, pending)
            for due in dues:
                await self._attempts.settle_from_receipt(due)
            for delivery in pending:
                self._receipts.remove(delivery)

    def immediate_sends(self) -> ImmediateSends:
        """Return the claims of deliveries that this worker, one with an order, can send at once."""
        return ImmediateSends(
            self._keyed_worker,
            self._leases,
            self._send_first,
            abandon=self._attempts.abandon,
            bot_destination=self._config.bot_destination,
        )

    async def _send_first(self, due: DueDelivery, destination: str, lease: Lease) -> None:
        """Send a delivery whose first attempt is recorded, and then what else is due."""
        await self._send_in_order(destination, lease, claimed=due)

    async def _work(self, destination: str) -> None:
        async with self._leases.acquire(f"d:{destination}", ttl=self._lease_ttl) as lease:
            if await self._is_ordered(destination):
                await self._send_in_order(destination, lease)
                return
            await self._send_concurrently(destination, lease)

    async def _is_ordered(self, destination: str) -> bool:
        if self._config.ordered:
            return True
        async with self._transactions.database.read() as connection:
            return await self._config.ordered_at(connection, destination)

    async def _send_in_order(
        self, destination: str, lease: Lease, *, claimed: DueDelivery | None = None
    ) -> None:
        """Attempt the due deliveries of a destination, one at a time unless a send is slow.

        The first attempt at `claimed` is recorded already.
        """
        in_flight = InFlight(self._config.slow_seconds)
        try:
            async with asyncio.TaskGroup() as group:
                if claimed is not None:
                    sending = self._attempt_in_turn(claimed, lease, is_claimed=True)
                    in_flight.add(claimed.delivery.id, group.create_task(sending))
                    if not await in_flight.wait_for_end(self._config.slow_seconds):
                        return
                while not self._stop.is_set():
                    wait = in_flight.remaining()
                    due = None if wait > 0 else await self._next_in_order(destination, lease, in_flight.ids)
                    if due is not None:
                        in_flight.add(due.delivery.id, group.create_task(self._attempt_in_turn(due, lease)))
                    elif not in_flight.sends:
                        return
                    if not await in_flight.wait_for_end(wait or self._config.slow_seconds):
                        return
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _next_in_order(
        self, destination: str, lease: Lease, in_flight: Collection[str]
    ) -> DueDelivery | None:
        """Return the next delivery that waits for no other; None when none is due."""
        bot = self._config.bot_destination(destination)
        while True:
            now = utc_now()
            async with self._transactions.database.read() as connection:
                heads = await ordering.list_due_heads(connection, destination, bot=bot, now=now, limit=BATCH)
            if heads.state.dead_reason is None:
                break
            if not await self._suppress_open(destination, heads.state.dead_reason, lease):
                return None
        if not heads.deliveries:
            await self._wake_for_retry(destination, now)
            return None
        if heads.state.remaining_pause(now) > 0:
            self._wake_after_pause(destination, heads.state, now)
            return None
        return next((due for due in heads.deliveries if due.delivery.id not in in_flight), None)

    async def _suppress_open(self, destination: str, why: str, lease: Lease) -> bool:
        """End the first unfinished deliveries of a dead destination; return whether there were any."""
        async with self._transactions.database.read() as connection:
            doomed = await store.list_open(connection, destination, limit=BATCH)
        await self._suppress(destination, doomed, why, lease)
        return bool(doomed)

    async def _wake_for_retry(self, destination: str, now: datetime) -> None:
        """Schedule a wake-up for the next retry at a destination, if there is one."""
        async with self._transactions.database.read() as connection:
            moment = await ordering.next_due_at(connection, destination, now=now)
        if moment is not None:
            self._wake_at(destination, moment)

    async def _send_concurrently(self, destination: str, lease: Lease) -> None:
        """Attempt the due deliveries of a destination, up to BATCH at once; none waits for another one."""
        sends, woken = ConcurrentSends(), self._keyed_worker.woken(destination)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    dues = [] if self._stop.is_set() else await self._list_due(destination, lease, sends.ids)
                    for claimed in await self._attempts.claim(dues, lease):
                        sends.add(
                            claimed.due.delivery.id, group.create_task(self._send_in_turn(claimed, lease))
                        )
                    if sends.tasks:
                        await self._attempts.settle(await sends.wait_for_ends(woken))
                    elif not dues:
                        return
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            await sends.abandon()

    async def _send_in_turn(self, claimed: ClaimedDelivery, lease: Lease) -> EndedSend:
        """Send a delivery once it finds a place."""
        async with self._sending.hold():
            return await self._attempts.send(claimed, lease)

    async def _list_due(
        self, destination: str, lease: Lease, in_flight: Collection[str]
    ) -> Sequence[DueDelivery]:
        """Return the due deliveries that find a place beside those in flight; none during a pause."""
        bot = self._config.bot_destination(destination)
        while True:
            now = utc_now()
            async with self._transactions.database.read() as connection:
                state = await destinations.get_state(connection, destination, bot=bot)
                if state.dead_reason is None:
                    dues = await store.list_due(connection, destination, now=now, limit=BATCH)
                else:
                    dues = await store.list_open(connection, destination, limit=BATCH)
            found = [due for due in dues if due.delivery.id not in in_flight][: BATCH - len(in_flight)]
            if state.dead_reason is None:
                break
            if not found:
                return []
            await self._suppress(destination, found, state.dead_reason, lease)
        if state.remaining_pause(now) > 0:
            self._wake_after_pause(destination, state, now)
            return []
        if not found and not in_flight:
            await self._wake_for_retry(destination, now)
        return found

    async def _attempt_in_turn(self, due: DueDelivery, lease: Lease, *, is_claimed: bool = False) -> bool:
        """Attempt a delivery once it finds a place: the batch of one destination may not fill the pool.

        Returns whether anything may be unfinished at its destination.
        """
        async with self._sending.hold():
            if is_claimed:
                return await self._attempts.attempt_claimed(due, lease)
            return await self._attempts.attempt(due, lease)

    def _wake_after_pause(self, destination: str, state: DestinationState, now: datetime) -> None:
        """Schedule a wake-up for the end of the pause; report a pause of the whole bot to the channel."""
        wait = state.remaining_pause(now)
        if state.bot_paused_until is not None and state.bot_paused_until > now:
            self._config.on_bot_paused(destination, (state.bot_paused_until - now).total_seconds())
        self._wake_at(destination, now + timedelta(seconds=wait))

    def _wake_at(self, destination: str, moment: datetime) -> None:
        self._transactions.wake_soon(self._config.queue, destination, moment, account=current_account())

    async def _suppress(self, destination: str, dues: list[DueDelivery], why: str, lease: Lease) -> None:
        """End deliveries of a dead destination without an attempt, unless it is alive or tried again now."""
        if not dues:
            return
        lease.ensure_held()
        transition = Transition(state=DeliveryState.SUPPRESSED, event_type=EventType.DELIVERY_FAILED)
        async with self._transactions.begin("delivery.suppress") as tx:
            account = dues[0].delivery.account
            if await ordering.reopen_if_due(tx.connection, account, destination):
                return
            for due in dues:
                await store.set_state(tx.connection, due.delivery.id, state=transition.state, error=why)
                reports.emit(tx, due, transition, due.delivery.attempt, None)
