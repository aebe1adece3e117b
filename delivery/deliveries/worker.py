"""The worker: claims what is due for one destination at a time and brings it home, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from delivery.broker.keyed_worker import Rounds
from delivery.broker.port import Lease, Leases, Queue, Signals
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Unavailable
from delivery.deliveries import destinations, store
from delivery.deliveries.attempt import DeliveryState, Judgement, Policy, judge, recover
from delivery.deliveries.destinations import Weather
from delivery.deliveries.port import Delivery, Outcome, Sink, Verdict
from delivery.deliveries.retry_schedule import Schedule
from delivery.deliveries.send_receipts import Arrival, Arrivals
from delivery.deliveries.store import Due
from delivery.deliveries.transactions import Entry, Ledger
from delivery.events.event import Event, Kind

log = structlog.get_logger(__name__)

BATCH = 20


async def _as_planned(delivery: Delivery) -> bytes:
    return delivery.body


async def _as_the_lane(_connection: Connection, _destination: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """How one kind of delivery is brought home.

    `ordered`: the first unfinished one holds up the rest, everywhere or at single destinations
    (`ordered_at`). `complete` gives a delivery its lasting body before the first attempt. `wider` names the
    destination whose holds hold this one too, and `told` hears of such a hold in seconds. `resolves`: what
    became of an uncertain attempt can be found out by the sink.
    """

    queue: Queue
    sink: Sink
    schedule: Schedule
    ordered: bool
    repeatable: bool
    ordered_at: Callable[[Connection, str], Awaitable[bool]] = _as_the_lane
    complete: Callable[[Delivery], Awaitable[bytes]] = _as_planned
    policy: Callable[[Delivery], Policy] = lambda _delivery: Policy.AT_LEAST_ONCE
    resolves: Callable[[Delivery], bool] = lambda _delivery: False
    wider: Callable[[str], str] = lambda _destination: ""
    told: Callable[[str, float], None] = lambda _destination, _seconds: None


class Worker:
    """Looks after one lane: one destination is worked on by one worker among all replicas.

    `arrivals` notes what a platform took before the ledger has it, and knows what a killed process noted.
    """

    def __init__(
        self,
        lane: Lane,
        *,
        ledger: Ledger,
        leases: Leases,
        signals: Signals,
        checkpoint: Callable[[str], None],
        arrivals: Arrivals | None = None,
        at_most: int = 64,
        lease_ttl: float = 6.0,
    ) -> None:
        self._lane = lane
        self._arrivals = arrivals
        self._ledger = ledger
        self._leases = leases
        self._checkpoint = checkpoint
        self._lease_ttl = lease_ttl
        self._rounds = Rounds(lane.queue, signals, self._work, wake=ledger.signal, at_most=at_most)

    async def run(self, stop: asyncio.Event) -> None:
        """Work on signals until stopped; what is being sent then is finished first."""
        self._stop = stop
        await self._recall()
        await self._rounds.run(stop)

    async def _recall(self) -> None:
        """Record what the process before us heard of and could not record any more."""
        if self._arrivals is None:
            return
        noted = [arrival.delivery for arrival in self._arrivals.standing]
        with suppress(Unavailable):  # then the notes stand, for when their turn comes
            async with self._ledger.database.read() as connection:
                dues = await store.being_sent(connection, noted)
            for due in dues:
                await self._settled_by_note(due)
            for delivery in noted:
                self._arrivals.forget(delivery)

    async def _work(self, destination: str) -> None:
        async with self._leases.hold(f"d:{destination}", ttl=self._lease_ttl) as lease:
            while not self._stop.is_set() and await self._round(destination, lease):
                pass

    async def _round(self, destination: str, lease: Lease) -> bool:
        """Attempt what is due; says whether there may be more to do at once."""
        now = utc_now()
        wider = self._lane.wider(destination)
        async with self._ledger.database.read() as connection:
            weather = await destinations.weather(connection, destination, bot=wider)
            dues = await store.open_at(connection, destination, limit=BATCH)
            ordered = self._lane.ordered or await self._lane.ordered_at(connection, destination)
        if weather.dead is not None and dues:
            await self._suppress(dues, weather.dead, lease)
            return len(dues) == BATCH
        if weather.wait(now) > 0:
            self._wait_out(destination, weather, now)
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

    def _wait_out(self, destination: str, weather: Weather, now: datetime) -> None:
        """Look again when the hold is over; one of the whole bot is told, whoever was refused."""
        wait = weather.wait(now)
        if weather.bot_held_until is not None and weather.bot_held_until > now:
            self._lane.told(destination, (weather.bot_held_until - now).total_seconds())
        self._ledger.signal(self._lane.queue, destination, now + timedelta(seconds=wait))

    async def _suppress(self, dues: list[Due], why: str, lease: Lease) -> None:
        """End what waits for a destination that takes nothing any more; nobody is called for it."""
        lease.check()
        ended = Judgement(state=DeliveryState.SUPPRESSED, tell=Kind.DELIVERY_FAILED)
        async with self._ledger.entry("delivery.suppress") as entry:
            for due in dues:
                await store.leave(entry.connection, due.delivery.id, state=ended.state, error=why)
                self._tell(entry, due, ended, due.delivery.attempt, None)

    def _wake_later(self, destination: str, dues: list[Due]) -> None:
        moments = [due.next_at for due in dues if due.next_at is not None]
        if moments:
            self._ledger.signal(self._lane.queue, destination, min(moments))

    async def _attempt(self, due: Due, lease: Lease) -> None:
        if due.state is DeliveryState.SENDING and (
            await self._settled_by_note(due) or not await self._recovered(due)
        ):
            return
        body = due.delivery.body
        if due.delivery.attempt == 0:
            body = await self._lane.complete(due.delivery)
        tried = await self._first_tried(due) if due.delivery.uncertain else None
        started = utc_now()
        async with self._ledger.entry("delivery.claim") as entry:
            number = await store.begin_attempt(entry.connection, due, now=started, body=body)
        lease.check()
        self._checkpoint("delivery.before_send")
        async with AsyncExitStack() as held:
            clock = time.monotonic()
            outcome = await self._lane.sink.send(
                replace(due.delivery, attempt=number, body=body, tried_at=tried, check=lease.check, held=held)
            )
            self._checkpoint("delivery.after_send")
            took = (time.monotonic() - clock) * 1000
            self._note(due, number, outcome, took)
            await self._settle(due, number, outcome, took)
        if self._arrivals is not None:
            self._arrivals.forget(due.delivery.id)

    def _note(self, due: Due, number: int, outcome: Outcome, took: float) -> None:
        """Write down at once what a platform took."""
        if self._arrivals is None or outcome.verdict is not Verdict.DELIVERED or not outcome.platform_id:
            return
        self._arrivals.note(
            Arrival(
                delivery=due.delivery.id, attempt=number, platform_id=outcome.platform_id, duration_ms=took
            )
        )
        self._checkpoint("delivery.noted")

    async def _settled_by_note(self, due: Due) -> bool:
        """Record an arrival that was noted and not recorded; says whether there was one."""
        if self._arrivals is None:
            return False
        noted = self._arrivals.of(due.delivery.id)
        if noted is None or noted.attempt != due.delivery.attempt:
            return False
        outcome = Outcome(verdict=Verdict.DELIVERED, platform_id=noted.platform_id)
        await self._settle(due, noted.attempt, outcome, noted.duration_ms)
        self._arrivals.forget(due.delivery.id)
        return True

    async def _first_tried(self, due: Due) -> datetime | None:
        async with self._ledger.database.read() as connection:
            return await store.first_tried(connection, due.delivery.id)

    async def _recovered(self, due: Due) -> bool:
        """Judge a delivery that a dead worker was sending; says whether to send it (again)."""
        repeatable = (
            self._lane.repeatable or due.delivery.platform_id is not None or self._lane.resolves(due.delivery)
        )
        judgement = recover(now=utc_now(), repeatable=repeatable, policy=self._lane.policy(due.delivery))
        if judgement.state is DeliveryState.RETRYING:
            return True
        async with self._ledger.entry("delivery.recover") as entry:
            await store.leave(entry.connection, due.delivery.id, state=judgement.state)
            self._tell(entry, due, judgement, due.delivery.attempt, None)
        return False

    async def _settle(self, due: Due, number: int, outcome: Outcome, duration_ms: float) -> None:
        now = utc_now()
        judgement = judge(
            DeliveryState.SENDING,
            outcome,
            attempt=number - due.armed_from,
            schedule=self._lane.schedule,
            now=now,
            since=due.armed_at,
            policy=self._lane.policy(due.delivery),
        )
        destination, account = due.destination, due.delivery.account
        async with self._ledger.entry("delivery.settle", urgent=True) as entry:
            ended = await store.end_attempt(
                entry.connection, due.delivery.id, number, outcome, judgement, duration_ms=duration_ms
            )
            if not ended:
                return
            if judgement.hold_until:
                held = self._lane.wider(destination) if outcome.hold_bot else destination
                await destinations.hold(
                    entry.connection, held or destination, account=account, until=judgement.hold_until
                )
            if judgement.bury:
                await destinations.bury(entry.connection, destination, account=account, why=outcome.detail)
            if judgement.disable:
                await store.disable_endpoint(entry.connection, destination, why=outcome.detail)
                _tell_disabled(entry, due, outcome.detail)
            self._tell(entry, due, judgement, number, outcome.platform_id or due.delivery.platform_id)
        self._log(due, judgement, outcome, number)

    def _tell(
        self, entry: Entry, due: Due, judgement: Judgement, attempt: int, platform_id: str | None
    ) -> None:
        if judgement.tell is None or due.delivery.conversation is None:
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
        entry.tell(Event.now(judgement.tell, due.delivery.conversation, said, turn=due.delivery.turn))

    @staticmethod
    def _log(due: Due, judgement: Judgement, outcome: Outcome, attempt: int) -> None:
        fields: Mapping[str, object] = {
            "delivery": due.delivery.id,
            "kind": due.delivery.kind,
            "state": str(judgement.state),
            "attempt": attempt,
            "conversation": due.delivery.conversation,
            "turn": due.delivery.turn,
        }
        if judgement.bury:
            log.error("delivery.chat_dead", detail=outcome.detail, **fields)
        elif judgement.operator:
            log.error("delivery.needs_operator", detail=outcome.detail, **fields)
        elif judgement.state is not DeliveryState.DELIVERED:
            log.warning("delivery.attempted", detail=outcome.detail, **fields)
        else:
            log.info("delivery.attempted", **fields)


def _tell_disabled(entry: Entry, due: Due, why: str) -> None:
    """Say in the log, and to the account's other webhooks, that one is called no more."""
    log.error("webhook.disabled", webhook=due.destination, account=due.delivery.account, why=why)
    if due.delivery.conversation is not None:
        told = {"webhook": due.destination, "why": why}
        entry.tell(Event.now(Kind.WEBHOOK_DISABLED, due.delivery.conversation, told))
