"""The delivery worker: claims the due deliveries of one destination at a time and sends them in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from delivery.background import log_errors
from delivery.broker.keyed_worker import KeyedWorker
from delivery.broker.port import Lease, Leases, WakeUps
from delivery.database.clock import utc_now
from delivery.deliveries import destinations, ordering, store
from delivery.deliveries.attempt import DeliveryState, Transition, next_state, recover
from delivery.deliveries.destinations import DestinationState
from delivery.deliveries.ordering import ConcurrentSends, InFlight
from delivery.deliveries.port import Outcome, OutcomeKind
from delivery.deliveries.send_receipts import SendReceipt, SendReceipts
from delivery.deliveries.sink_config import SinkConfig
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType
from delivery.fair_gate import FairGate, current_account
from delivery.fair_scheduler import PoolSize

log = structlog.get_logger(__name__)

BATCH = 20
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
        self._checkpoint = checkpoint
        self._lease_ttl = lease_ttl
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
                await self._settle_from_receipt(due)
            for delivery in pending:
                self._receipts.remove(delivery)

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

    async def _send_in_order(self, destination: str, lease: Lease) -> None:
        """Attempt the due deliveries of a destination, one at a time unless a send is slow."""
        in_flight = InFlight(self._config.slow_seconds)
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stop.is_set():
                    wait = in_flight.remaining()
                    due = None if wait > 0 else await self._next_in_order(destination, lease, in_flight.ids)
                    if due is not None:
                        in_flight.add(due.delivery.id, group.create_task(self._attempt_in_turn(due, lease)))
                    elif not in_flight.sends:
                        return
                    if not await in_flight.wait(wait or self._config.slow_seconds):
                        return
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _next_in_order(
        self, destination: str, lease: Lease, in_flight: Collection[str]
    ) -> DueDelivery | None:
        """Return the next delivery that waits for no other; None when none is due."""
        now = utc_now()
        bot = self._config.bot_destination(destination)
        async with self._transactions.database.read() as connection:
            heads = await ordering.list_due_heads(connection, destination, bot=bot, now=now, limit=BATCH)
        if heads.state.dead_reason is not None:
            suppressed = await self._suppress_open(destination, heads.state.dead_reason, lease)
            return await self._next_in_order(destination, lease, in_flight) if suppressed else None
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
        await self._suppress(doomed, why, lease)
        return bool(doomed)

    async def _wake_for_retry(self, destination: str, now: datetime) -> None:
        """Schedule a wake-up for the next retry at a destination, if there is one."""
        async with self._transactions.database.read() as connection:
            moment = await ordering.next_due_at(connection, destination, now=now)
        if moment is not None:
            self._wake_at(destination, moment)

    async def _send_concurrently(self, destination: str, lease: Lease) -> None:
        """Attempt the due deliveries of a destination, up to BATCH at once; none waits for another one."""
        sends = ConcurrentSends()
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stop.is_set():
                    for due in await self._list_due(destination, lease, sends.ids):
                        sends.add(due.delivery.id, group.create_task(self._attempt_in_turn(due, lease)))
                    if not sends.tasks:
                        return
                    await sends.wait()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _list_due(
        self, destination: str, lease: Lease, in_flight: Collection[str]
    ) -> Sequence[DueDelivery]:
        """Return the due deliveries that find a place beside those in flight; none during a pause."""
        now = utc_now()
        bot = self._config.bot_destination(destination)
        async with self._transactions.database.read() as connection:
            state = await destinations.get_state(connection, destination, bot=bot)
            if state.dead_reason is None:
                dues = await store.list_due(connection, destination, now=now, limit=BATCH)
            else:
                dues = await store.list_open(connection, destination, limit=BATCH)
        found = [due for due in dues if due.delivery.id not in in_flight][: BATCH - len(in_flight)]
        if state.dead_reason is not None:
            await self._suppress(found, state.dead_reason, lease)
            return await self._list_due(destination, lease, in_flight) if found else []
        if state.remaining_pause(now) > 0:
            self._wake_after_pause(destination, state, now)
            return []
        if not found and not in_flight:
            await self._wake_for_retry(destination, now)
        return found

    async def _attempt_in_turn(self, due: DueDelivery, lease: Lease) -> bool:
        """Attempt a delivery once it finds a place: the batch of one destination may not fill the pool.

        Returns whether anything may be unfinished at its destination.
        """
        async with self._sending.hold():
            return await self._attempt(due, lease)

    def _wake_after_pause(self, destination: str, state: DestinationState, now: datetime) -> None:
        """Schedule a wake-up for the end of the pause; report a pause of the whole bot to the channel."""
        wait = state.remaining_pause(now)
        if state.bot_paused_until is not None and state.bot_paused_until > now:
            self._config.on_bot_paused(destination, (state.bot_paused_until - now).total_seconds())
        self._wake_at(destination, now + timedelta(seconds=wait))

    def _wake_at(self, destination: str, moment: datetime) -> None:
        self._transactions.wake_soon(self._config.queue, destination, moment, account=current_account())

    async def _suppress(self, dues: list[DueDelivery], why: str, lease: Lease) -> None:
        """End the deliveries of a dead destination without an attempt."""
        if not dues:
            return
        lease.ensure_held()
        transition = Transition(state=DeliveryState.SUPPRESSED, event_type=EventType.DELIVERY_FAILED)
        async with self._transactions.begin("delivery.suppress") as tx:
            for due in dues:
                await store.set_state(tx.connection, due.delivery.id, state=transition.state, error=why)
                self._emit(tx, due, transition, due.delivery.attempt, None)

    async def _attempt(self, due: DueDelivery, lease: Lease) -> bool:
        if due.state is DeliveryState.SENDING and (
            await self._settle_from_receipt(due) or not await self._recover(due)
        ):
            return True
        body = due.delivery.body
        if due.delivery.attempt == 0:
            body = await self._config.complete_body(due.delivery)
        first_attempt_at = await self._first_attempt_at(due) if due.delivery.uncertain else None
        now = utc_now()
        async with self._transactions.begin("delivery.claim") as tx:
            number = await store.begin_attempt(tx.connection, due, now=now, body=body)
        lease.ensure_held()
        self._checkpoint("delivery.before_send")
        async with AsyncExitStack() as exit_stack:
            started = time.monotonic()
            outcome = await self._config.sink.send(
                replace(
                    due.delivery,
                    attempt=number,
                    body=body,
                    first_attempt_at=first_attempt_at,
                    ensure_held=lease.ensure_held,
                    exit_stack=exit_stack,
                )
            )
            self._checkpoint("delivery.after_send")
            duration_ms = (time.monotonic() - started) * 1000
            self._save_receipt(due, number, outcome, duration_ms)
            more = await self._settle(due, number, outcome, duration_ms)
        if self._receipts is not None:
            self._receipts.remove(due.delivery.id)
        return more

    def _save_receipt(self, due: DueDelivery, number: int, outcome: Outcome, duration_ms: float) -> None:
        """Write a receipt as soon as a platform has accepted a delivery."""
        if self._receipts is None or outcome.kind is not OutcomeKind.DELIVERED or not outcome.platform_id:
            return
        self._receipts.append(
            SendReceipt(
                delivery=due.delivery.id,
                attempt=number,
                platform_id=outcome.platform_id,
                duration_ms=duration_ms,
            )
        )
        self._checkpoint("delivery.noted")

    async def _settle_from_receipt(self, due: DueDelivery) -> bool:
        """Settle a delivery by the receipt of its last attempt; return whether there was one."""
        if self._receipts is None:
            return False
        receipt = self._receipts.get(due.delivery.id)
        if receipt is None or receipt.attempt != due.delivery.attempt:
            return False
        outcome = Outcome(kind=OutcomeKind.DELIVERED, platform_id=receipt.platform_id)
        await self._settle(due, receipt.attempt, outcome, receipt.duration_ms)
        self._receipts.remove(due.delivery.id)
        return True

    async def _first_attempt_at(self, due: DueDelivery) -> datetime | None:
        async with self._transactions.database.read() as connection:
            return await store.first_attempt_at(connection, due.delivery.id)

    async def _recover(self, due: DueDelivery) -> bool:
        """Decide about a delivery that a crashed worker was sending; return whether to send it again."""
        repeatable = (
            self._config.repeatable
            or due.delivery.platform_id is not None
            or self._config.resolves(due.delivery)
        )
        transition = recover(now=utc_now(), repeatable=repeatable, policy=self._config.policy(due.delivery))
        if transition.state is DeliveryState.RETRYING:
            return True
        async with self._transactions.begin("delivery.recover") as tx:
            await store.set_state(tx.connection, due.delivery.id, state=transition.state)
            self._emit(tx, due, transition, due.delivery.attempt, None)
        return False

    async def _settle(self, due: DueDelivery, number: int, outcome: Outcome, duration_ms: float) -> bool:
        """Record the outcome of an attempt; return whether anything may be unfinished at the destination."""
        transition = next_state(
            DeliveryState.SENDING,
            outcome,
            attempt=number - due.armed_from,
            schedule=self._config.schedule,
            now=utc_now(),
            since=due.armed_at,
            failing_since=await self._failing_since(due, outcome),
            policy=self._config.policy(due.delivery),
        )
        if due.delivery.uncertain and transition.state is not DeliveryState.DELIVERED:
            # Whatever became of this attempt, an earlier one may have arrived: it is looked up every time.
            transition = replace(transition, uncertain=True)
        if due.state is transition.state is DeliveryState.PARKED:
            transition = replace(transition, event_type=None)
        destination, account = due.destination, due.delivery.account
        async with self._transactions.begin("delivery.settle", urgent=True) as tx:
            ended = await store.end_attempt(
                tx.connection, due.delivery.id, number, outcome, transition, duration_ms=duration_ms
            )
            if ended is None:
                return True
            if transition.pause_until:
                paused = self._config.bot_destination(destination) if outcome.pause_bot else destination
                await destinations.pause(
                    tx.connection, paused or destination, account=account, until=transition.pause_until
                )
            if transition.mark_dead:
                await destinations.mark_dead(tx.connection, destination, account=account, why=outcome.detail)
            if transition.disable_endpoint:
                await store.disable_endpoint(tx.connection, destination, why=outcome.detail)
                _emit_disabled(tx, due, outcome.detail)
            await self._settle_order(tx, due, transition, number)
            self._emit(tx, due, transition, number, outcome.platform_id or due.delivery.platform_id)
        self._log(due, transition, outcome, number)
        return ended.has_others or transition.state is not DeliveryState.DELIVERED

    async def _failing_since(self, due: DueDelivery, outcome: Outcome) -> datetime | None:
        if outcome.kind is OutcomeKind.DELIVERED or self._config.schedule.park_after is None:
            return None
        async with self._transactions.database.read() as connection:
            return await store.first_attempt_at(connection, due.delivery.id, after=due.armed_from)

    async def _settle_order(
        self, tx: Transaction, due: DueDelivery, transition: Transition, number: int
    ) -> None:
        """Let the others pass a delivery that is parked; after a recovery, retry what is parked."""
        if transition.state is DeliveryState.PARKED:
            await ordering.park_later_parts(tx.connection, due.delivery, until=transition.next_at)
            if due.state is not DeliveryState.PARKED:
                await self._config.on_parked(tx, due)
        elif transition.state is DeliveryState.DELIVERED and number > 1:
            await ordering.hurry_parked(tx.connection, due.destination, now=utc_now())

    def _emit(
        self, tx: Transaction, due: DueDelivery, transition: Transition, attempt: int, platform_id: str | None
    ) -> None:
        if transition.event_type is None or due.delivery.conversation is None:
            return
        data: dict[str, object] = {
            "delivery": due.delivery.id,
            "route": due.delivery.kind,
            "attempt": attempt,
            "event": due.delivery.event_id,
            "part": due.delivery.part,
        }
        if platform_id:
            data["platform_id"] = platform_id
        if transition.state is DeliveryState.PARKED:
            data["parked"] = True
        tx.emit(Event.now(transition.event_type, due.delivery.conversation, data, turn=due.delivery.turn))

    @staticmethod
    def _log(due: DueDelivery, transition: Transition, outcome: Outcome, attempt: int) -> None:
        fields: Mapping[str, object] = {
            "delivery": due.delivery.id,
            "kind": due.delivery.kind,
            "state": str(transition.state),
            "attempt": attempt,
            "conversation": due.delivery.conversation,
            "turn": due.delivery.turn,
        }
        if transition.mark_dead:
            log.error("destination.marked_dead", detail=outcome.detail, **fields)
        elif transition.needs_operator:
            log.error("delivery.operator_required", detail=outcome.detail, **fields)
        elif transition.state is not DeliveryState.DELIVERED:
            log.warning("delivery.attempted", detail=outcome.detail, **fields)
        else:
            log.info("delivery.attempted", **fields)


def _emit_disabled(tx: Transaction, due: DueDelivery, why: str) -> None:
    """Log that an endpoint is disabled, and emit the event for the account's other webhooks."""
    log.error("webhook.disabled", webhook=due.destination, account=due.delivery.account, why=why)
    if due.delivery.conversation is not None:
        data = {"webhook": due.destination, "why": why}
        tx.emit(Event.now(EventType.WEBHOOK_DISABLED, due.delivery.conversation, data))
