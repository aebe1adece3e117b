"""The worker: claims what is due for one destination at a time and brings it home, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from delivery.broker.keyed_worker import KeyedWorker
from delivery.broker.port import Lease, Leases, WakeUps, WorkQueue
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, DatabaseUnavailable
from delivery.deliveries import destinations, store
from delivery.deliveries.attempt import AmbiguityPolicy, DeliveryState, Transition, next_state, recover
from delivery.deliveries.destinations import DestinationState
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.retry_schedule import RetrySchedule
from delivery.deliveries.send_receipts import SendReceipt, SendReceipts
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType

log = structlog.get_logger(__name__)

BATCH = 20


async def _body_as_created(delivery: Delivery) -> bytes:
    return delivery.body


async def _never_ordered(_connection: Connection, _destination: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """How one kind of delivery is brought home.

    `ordered`: the first unfinished one holds up the rest, everywhere or at single destinations
    (`ordered_at`). `complete` gives a delivery its lasting body before the first attempt. `wider` names the
    destination whose holds hold this one too, and `told` hears of such a hold in seconds. `resolves`: what
    became of an uncertain attempt can be found out by the sink.
    """

    queue: WorkQueue
    sink: Sink
    schedule: RetrySchedule
    ordered: bool
    repeatable: bool
    ordered_at: Callable[[Connection, str], Awaitable[bool]] = _never_ordered
    complete_body: Callable[[Delivery], Awaitable[bytes]] = _body_as_created
    policy: Callable[[Delivery], AmbiguityPolicy] = lambda _delivery: AmbiguityPolicy.AT_LEAST_ONCE
    resolves: Callable[[Delivery], bool] = lambda _delivery: False
    bot_destination: Callable[[str], str] = lambda _destination: ""
    on_bot_paused: Callable[[str, float], None] = lambda _destination, _seconds: None


class DeliveryWorker:
    """Looks after one lane: one destination is worked on by one worker among all replicas.

    `arrivals` notes what a platform took before the ledger has it, and knows what a killed process noted.
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
        at_most: int = 64,
        lease_ttl: float = 6.0,
    ) -> None:
        self._config = config
        self._receipts = receipts
        self._transactions = transactions
        self._leases = leases
        self._checkpoint = checkpoint
        self._lease_ttl = lease_ttl
        self._keyed_worker = KeyedWorker(
            config.queue, wake_ups, self._work, wake=transactions.wake_soon, at_most=at_most
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work on signals until stopped; what is being sent then is finished first."""
        self._stop = stop
        await self._recover_receipts()
        await self._keyed_worker.run(stop)

    async def _recover_receipts(self) -> None:
        """Record what the process before us heard of and could not record any more."""
        if self._receipts is None:
            return
        noted = [arrival.delivery for arrival in self._receipts.pending]
        with suppress(DatabaseUnavailable):  # then the notes stand, for when their turn comes
            async with self._transactions.database.read() as connection:
                dues = await store.list_in_flight(connection, noted)
            for due in dues:
                await self._settle_from_receipt(due)
            for delivery in noted:
                self._receipts.remove(delivery)

    async def _work(self, destination: str) -> None:
        async with self._leases.acquire(f"d:{destination}", ttl=self._lease_ttl) as lease:
            while not self._stop.is_set() and await self._send_due(destination, lease):
                pass

    async def _send_due(self, destination: str, lease: Lease) -> bool:
        """Attempt what is due; says whether there may be more to do at once."""
        now = utc_now()
        wider = self._config.bot_destination(destination)
        async with self._transactions.database.read() as connection:
            weather = await destinations.get_state(connection, destination, bot=wider)
            dues = await store.list_open(connection, destination, limit=BATCH)
            ordered = self._config.ordered or await self._config.ordered_at(connection, destination)
        if weather.dead_reason is not None and dues:
            await self._suppress(dues, weather.dead_reason, lease)
            return len(dues) == BATCH
        if weather.remaining_pause(now) > 0:
            self._wake_after_pause(destination, weather, now)
            return False
        dues = dues[:1] if ordered else dues
        ready = [due for due in dues if due.next_at is None or due.next_at <= now]
        if not ready:
            self._wake_later(destination, dues)
            return False
        if len(ready) == 1:
            await self._attempt(ready[0], lease)
            return True
        async with asyncio.TaskGroup() as group:
            for due in ready:
                group.create_task(self._attempt(due, lease))
        return True

    def _wake_after_pause(self, destination: str, state: DestinationState, now: datetime) -> None:
        """Look again when the hold is over; one of the whole bot is told, whoever was refused."""
        wait = state.remaining_pause(now)
        if state.bot_paused_until is not None and state.bot_paused_until > now:
            self._config.on_bot_paused(destination, (state.bot_paused_until - now).total_seconds())
        self._transactions.wake_soon(self._config.queue, destination, now + timedelta(seconds=wait))

    async def _suppress(self, dues: list[DueDelivery], why: str, lease: Lease) -> None:
        """End what waits for a destination that takes nothing any more; nobody is called for it."""
        lease.ensure_held()
        ended = Transition(state=DeliveryState.SUPPRESSED, event_type=EventType.DELIVERY_FAILED)
        async with self._transactions.begin("delivery.suppress") as entry:
            for due in dues:
                await store.set_state(entry.connection, due.delivery.id, state=ended.state, error=why)
                self._emit(entry, due, ended, due.delivery.attempt, None)

    def _wake_later(self, destination: str, dues: list[DueDelivery]) -> None:
        moments = [due.next_at for due in dues if due.next_at is not None]
        if moments:
            self._transactions.wake_soon(self._config.queue, destination, min(moments))

    async def _attempt(self, due: DueDelivery, lease: Lease) -> None:
        if due.state is DeliveryState.SENDING and (
            await self._settle_from_receipt(due) or not await self._recover(due)
        ):
            return
        body = due.delivery.body
        if due.delivery.attempt == 0:
            body = await self._config.complete_body(due.delivery)
        tried = await self._first_attempt_at(due) if due.delivery.uncertain else None
        started = utc_now()
        async with self._transactions.begin("delivery.claim") as entry:
            number = await store.begin_attempt(entry.connection, due, now=started, body=body)
        lease.ensure_held()
        self._checkpoint("delivery.before_send")
        async with AsyncExitStack() as held:
            clock = time.monotonic()
            outcome = await self._config.sink.send(
                replace(
                    due.delivery,
                    attempt=number,
                    body=body,
                    first_attempt_at=tried,
                    ensure_held=lease.ensure_held,
                    exit_stack=held,
                )
            )
            self._checkpoint("delivery.after_send")
            took = (time.monotonic() - clock) * 1000
            self._save_receipt(due, number, outcome, took)
            await self._settle(due, number, outcome, took)
        if self._receipts is not None:
            self._receipts.remove(due.delivery.id)

    def _save_receipt(self, due: DueDelivery, number: int, outcome: Outcome, duration_ms: float) -> None:
        """Write down at once what a platform took."""
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
        """Record an arrival that was noted and not recorded; says whether there was one."""
        if self._receipts is None:
            return False
        noted = self._receipts.get(due.delivery.id)
        if noted is None or noted.attempt != due.delivery.attempt:
            return False
        outcome = Outcome(kind=OutcomeKind.DELIVERED, platform_id=noted.platform_id)
        await self._settle(due, noted.attempt, outcome, noted.duration_ms)
        self._receipts.remove(due.delivery.id)
        return True

    async def _first_attempt_at(self, due: DueDelivery) -> datetime | None:
        async with self._transactions.database.read() as connection:
            return await store.first_attempt_at(connection, due.delivery.id)

    async def _recover(self, due: DueDelivery) -> bool:
        """Judge a delivery that a dead worker was sending; says whether to send it (again)."""
        repeatable = (
            self._config.repeatable
            or due.delivery.platform_id is not None
            or self._config.resolves(due.delivery)
        )
        judgement = recover(now=utc_now(), repeatable=repeatable, policy=self._config.policy(due.delivery))
        if judgement.state is DeliveryState.RETRYING:
            return True
        async with self._transactions.begin("delivery.recover") as entry:
            await store.set_state(entry.connection, due.delivery.id, state=judgement.state)
            self._emit(entry, due, judgement, due.delivery.attempt, None)
        return False

    async def _settle(self, due: DueDelivery, number: int, outcome: Outcome, duration_ms: float) -> None:
        now = utc_now()
        judgement = next_state(
            DeliveryState.SENDING,
            outcome,
            attempt=number - due.armed_from,
            schedule=self._config.schedule,
            now=now,
            since=due.armed_at,
            policy=self._config.policy(due.delivery),
        )
        destination, account = due.destination, due.delivery.account
        async with self._transactions.begin("delivery.settle", urgent=True) as entry:
            ended = await store.end_attempt(
                entry.connection, due.delivery.id, number, outcome, judgement, duration_ms=duration_ms
            )
            if not ended:
                return
            if judgement.pause_until:
                held = self._config.bot_destination(destination) if outcome.pause_bot else destination
                await destinations.pause(
                    entry.connection, held or destination, account=account, until=judgement.pause_until
                )
            if judgement.mark_dead:
                await destinations.mark_dead(
                    entry.connection, destination, account=account, why=outcome.detail
                )
            if judgement.disable_endpoint:
                await store.disable_endpoint(entry.connection, destination, why=outcome.detail)
                _emit_disabled(entry, due, outcome.detail)
            self._emit(entry, due, judgement, number, outcome.platform_id or due.delivery.platform_id)
        self._log(due, judgement, outcome, number)

    def _emit(
        self, tx: Transaction, due: DueDelivery, transition: Transition, attempt: int, platform_id: str | None
    ) -> None:
        if transition.event_type is None or due.delivery.conversation is None:
            return
        said: dict[str, object] = {
            "delivery": due.delivery.id,
            "route": due.delivery.kind,
            "attempt": attempt,
            "event": due.delivery.event_id,
            "part": due.delivery.part,
        }
        if platform_id:
            said["platform_id"] = platform_id
        tx.emit(Event.now(transition.event_type, due.delivery.conversation, said, turn=due.delivery.turn))

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
    """Say in the log, and to the account's other webhooks, that one is called no more."""
    log.error("webhook.disabled", webhook=due.destination, account=due.delivery.account, why=why)
    if due.delivery.conversation is not None:
        told = {"webhook": due.destination, "why": why}
        tx.emit(Event.now(EventType.WEBHOOK_DISABLED, due.delivery.conversation, told))
