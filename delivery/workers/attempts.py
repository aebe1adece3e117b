"""Attempt deliveries: claim, send, and record the outcome, for one delivery or for many at once.

A claim is committed before a send, and names its number. What a crash interrupts in between is decided by
the receipts and by `attempt.recover`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime

from delivery.broker.port import Lease
from delivery.database.clock import utc_now
from delivery.deliveries import attempt_store, destinations, ordering, store
from delivery.deliveries.attempt import DeliveryState, Transition, next_state, recover
from delivery.deliveries.attempt_store import EndedAttempt
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.fair_gate import ahead_of_accounts
from delivery.workers import reports
from delivery.workers.send_receipts import SendReceipt, SendReceipts
from delivery.workers.sink_config import SinkConfig

MAX_NEVER_SENT = 1000
"""Deliveries of which this process remembers that it has not sent them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery whose attempt is recorded: what the sink gets."""

    due: DueDelivery
    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSend:
    """A send with its outcome; `exit_stack` has the contexts that last until the outcome is recorded."""

    due: DueDelivery
    number: int
    outcome: Outcome
    duration_ms: float
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)


class Attempts:
    """Claims, sends and settles the deliveries of one kind."""

    def __init__(
        self,
        config: SinkConfig,
        transactions: Transactions,
        checkpoint: Callable[[str], None],
        receipts: SendReceipts | None,
    ) -> None:
        self._config = config
        self._transactions = transactions
        self._checkpoint = checkpoint
        self._receipts = receipts
        self._never_sent: OrderedDict[str, None] = OrderedDict()
        self._log = reports.AttemptLog()

    def abandon(self, delivery: str) -> None:
        """Remember that the first attempt of a delivery, if it is recorded, was not made."""
        self._never_sent[delivery] = None
        if len(self._never_sent) > MAX_NEVER_SENT:
            self._never_sent.popitem(last=False)

    async def attempt(self, due: DueDelivery, lease: Lease) -> bool:
        """Attempt one delivery; return whether anything may be unfinished at its destination."""
        claimed = await self.claim([due], lease)
        if not claimed:
            return True
        return await self.settle([await self.send(claimed[0], lease)])

    async def attempt_claimed(self, due: DueDelivery, lease: Lease) -> bool:
        """Attempt a delivery whose first attempt was recorded when it was created; see `attempt`."""
        delivery = replace(due.delivery, attempt=due.delivery.attempt + 1, ensure_held=lease.ensure_held)
        return await self.settle([await self.send(ClaimedDelivery(due=due, delivery=delivery), lease)])

    async def claim(self, dues: Sequence[DueDelivery], lease: Lease) -> list[ClaimedDelivery]:
        """Record an attempt of each delivery in one transaction; return those to send.

        Deliveries that an earlier process was sending may turn out to need no other attempt, and requests
        may have changed others since they were read.
        """
        dues = [due for due in map(self._marked_if_abandoned, dues) if await self._needs_attempt(due)]
        if not dues:
            return []
        prepared = await self._prepare_all(dues)
        bodies = {one.id: one.body for one in prepared}
        async with self._transactions.begin("delivery.claim") as tx:
            begun = await attempt_store.begin_attempts(tx.connection, dues, now=utc_now(), bodies=bodies)
        to_send = {one.id: replace(one, ensure_held=lease.ensure_held) for one in prepared}
        return [ClaimedDelivery(due=due, delivery=to_send[due.delivery.id]) for due in begun]

    async def send(self, claimed: ClaimedDelivery, lease: Lease) -> EndedSend:
        """Call the sink once, and keep a receipt of what it has delivered.

        A kill between a platform's acceptance and the receipt repeats a message that cannot be recognised. So
        the steps in between wait for no other work of the account.
        """
        lease.ensure_held()
        self._checkpoint("delivery.before_send")
        with nullcontext() if self._config.repeatable else ahead_of_accounts():
            ended = await self._call_sink(claimed)
            self._save_receipt(ended)
        return ended

    async def _call_sink(self, claimed: ClaimedDelivery) -> EndedSend:
        async with AsyncExitStack() as exit_stack:
            started = time.monotonic()
            outcome = await self._config.sink.send(replace(claimed.delivery, exit_stack=exit_stack))
            self._checkpoint("delivery.after_send")
            return EndedSend(
                due=claimed.due,
                number=claimed.delivery.attempt,
                outcome=outcome,
                duration_ms=(time.monotonic() - started) * 1000,
                exit_stack=exit_stack.pop_all(),
            )

    async def settle(self, ended: Sequence[EndedSend]) -> bool:
        """Record the outcomes of sends to one destination in one transaction, and leave their contexts.

        Returns whether anything may be unfinished at the destination.
        """
        if not ended:
            return True
        async with AsyncExitStack() as exit_stack:
            for one in ended:
                exit_stack.push_async_exit(one.exit_stack)
            more = await self._record(ended)
        if self._receipts is not None:
            for one in ended:
                self._receipts.remove(one.due.delivery.id)
        return more

    async def settle_from_receipt(self, due: DueDelivery) -> bool:
        """Settle a delivery by the receipt of its last attempt; return whether there was one."""
        if self._receipts is None:
            return False
        receipt = self._receipts.get(due.delivery.id)
        if receipt is None or receipt.attempt != due.delivery.attempt:
            return False
        outcome = Outcome(kind=OutcomeKind.DELIVERED, platform_id=receipt.platform_id)
        await self.settle(
            [EndedSend(due=due, number=receipt.attempt, outcome=outcome, duration_ms=receipt.duration_ms)]
        )
        return True

    def _marked_if_abandoned(self, due: DueDelivery) -> DueDelivery:
        """Return a delivery whose only attempt was not made as one that cannot have arrived."""
        if due.delivery.id not in self._never_sent or due.delivery.attempt > 1:
            return due
        return replace(due, is_abandoned=True, delivery=replace(due.delivery, uncertain=False))

    async def _needs_attempt(self, due: DueDelivery) -> bool:
        """Decide about a delivery that a crashed worker was sending; return whether to send it."""
        if due.state is not DeliveryState.SENDING or due.is_abandoned:
            return True
        return not await self.settle_from_receipt(due) and await self._recover(due)

    async def _recover(self, due: DueDelivery) -> bool:
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
            reports.emit(tx, due, transition, due.delivery.attempt, None)
        return False

    async def _prepare_all(self, dues: Sequence[DueDelivery]) -> Sequence[Delivery]:
        if len(dues) == 1:  # which needs no task
            return [await self._prepare(dues[0])]
        return await asyncio.gather(*(self._prepare(due) for due in dues))

    async def _prepare(self, due: DueDelivery) -> Delivery:
        """Return the delivery as its next attempt sends it."""
        delivery = due.delivery
        body = delivery.body if delivery.attempt else await self._config.complete_body(delivery)
        first = await self._first_attempt_at(due) if delivery.uncertain else None
        return replace(delivery, attempt=delivery.attempt + 1, body=body, first_attempt_at=first)

    async def _first_attempt_at(self, due: DueDelivery, *, after: int = 0) -> datetime | None:
        async with self._transactions.database.read() as connection:
            return await attempt_store.first_attempt_at(connection, due.delivery.id, after=after)

    def _save_receipt(self, ended: EndedSend) -> None:
        """Write a receipt as soon as a platform has accepted a delivery."""
        outcome = ended.outcome
        if self._receipts is None or outcome.kind is not OutcomeKind.DELIVERED or not outcome.platform_id:
            return
        self._receipts.append(
            SendReceipt(
                delivery=ended.due.delivery.id,
                attempt=ended.number,
                platform_id=outcome.platform_id,
                duration_ms=ended.duration_ms,
            )
        )
        self._checkpoint("delivery.noted")

    async def _record(self, sends: Sequence[EndedSend]) -> bool:
        transitions = [await self._transition(one) for one in sends]
        async with self._transactions.begin("delivery.settle", urgent=True) as tx:
            recorded = await attempt_store.end_attempts(
                tx.connection,
                [
                    EndedAttempt(
                        delivery=one.due.delivery.id,
                        number=one.number,
                        outcome=one.outcome,
                        transition=transition,
                        duration_ms=one.duration_ms,
                    )
                    for one, transition in zip(sends, transitions, strict=True)
                ],
            )
            changed = [
                (one, transition)
                for one, transition in zip(sends, transitions, strict=True)
                if one.due.delivery.id in recorded.changed
            ]
            for one, transition in changed:
                await self._apply(tx, one, transition)
        for one, transition in changed:
            self._log.write(one.due, transition, one.outcome, one.number)
        delivered = all(transition.state is DeliveryState.DELIVERED for transition in transitions)
        return recorded.has_others or not delivered

    async def _transition(self, ended: EndedSend) -> Transition:
        due = ended.due
        transition = next_state(
            DeliveryState.SENDING,
            ended.outcome,
            attempt=ended.number - due.armed_from,
            schedule=self._config.schedule,
            now=utc_now(),
            since=due.armed_at,
            failing_since=await self._failing_since(due, ended.outcome),
            policy=self._config.policy(due.delivery),
        )
        if due.delivery.uncertain and transition.state is not DeliveryState.DELIVERED:
            # Whatever became of this attempt, an earlier one may have arrived: it is looked up every time.
            transition = replace(transition, uncertain=True)
        if due.state is transition.state is DeliveryState.PARKED:
            transition = replace(transition, event_type=None)
        return transition

    async def _failing_since(self, due: DueDelivery, outcome: Outcome) -> datetime | None:
        if outcome.kind is OutcomeKind.DELIVERED or self._config.schedule.park_after is None:
            return None
        return await self._first_attempt_at(due, after=due.armed_from)

    async def _apply(self, tx: Transaction, ended: EndedSend, transition: Transition) -> None:
        """Record what an outcome means for others: the destination, its order, and the event log."""
        due, outcome = ended.due, ended.outcome
        destination, account = due.destination, due.delivery.account
        if transition.pause_until:
            paused = self._config.bot_destination(destination) if outcome.pause_bot else destination
            await destinations.pause(
                tx.connection, paused or destination, account=account, until=transition.pause_until
            )
        if transition.mark_dead:
            await destinations.mark_dead(tx.connection, destination, account=account, why=outcome.detail)
        if transition.disable_endpoint and await store.disable_endpoint(
            tx.connection, destination, why=outcome.detail
        ):
            reports.emit_disabled(tx, due, outcome.detail)
        await self._apply_order(tx, due, transition, ended.number)
        platform_id = outcome.platform_id or due.delivery.platform_id
        reports.emit(tx, due, transition, ended.number, platform_id)

    async def _apply_order(
        self, tx: Transaction, due: DueDelivery, transition: Transition, number: int
    ) -> None:
        """Let the others pass a delivery that is parked; after a recovery, retry what is parked."""
        if transition.state is DeliveryState.PARKED:
            await ordering.park_later_parts(tx.connection, due.delivery, until=transition.next_at)
            if due.state is not DeliveryState.PARKED:
                await self._config.on_parked(tx, due)
        elif transition.state is DeliveryState.DELIVERED and number > 1:
            await ordering.hurry_parked(tx.connection, due.destination, now=utc_now())
