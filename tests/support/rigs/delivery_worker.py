"""Run a chat delivery from its row to the platform, without a gateway around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from channels.message import Address
from channels.port import ChannelFeature
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.port import Leases, WakeUps, WorkQueue
from delivery.broker.wake_ups import MemoryWakeUps
from delivery.chat.sink import AttachFile, ChatSink, ConnectedBot
from delivery.database.engine import Database
from delivery.deliveries import queries, store
from delivery.deliveries.ordering import ordering_key
from delivery.deliveries.part import FilePart, Part, encode_part
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.queries import DeliveryView
from delivery.deliveries.retry_schedule import RetrySchedule
from delivery.deliveries.route import RouteKind
from delivery.deliveries.router import Router
from delivery.deliveries.store import DueDelivery, NewDelivery
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from delivery.events.relay import Relay
from delivery.workers.send_receipts import SendReceipts
from delivery.workers.sink_config import SinkConfig
from delivery.workers.worker import DeliveryWorker
from gateway.ingress.open_channels import UNKNOWN_LIMITS
from gateway.observability.fault_points import FAULT_POINTS
from migrated import migrated_sqlite

ACCOUNT = "acc_1"
FAST_RETRIES = RetrySchedule(
    delays=(0.02,), max_duration=600, jitter=0, honors_retry_after=True, operator_delay=900
)


def _check_fault_point(point: str) -> None:
    assert point in FAULT_POINTS, f"{point} is no fault point"


async def _refuse_file(
    _bot: ConnectedBot, _address: Address, _delivery: Delivery, _file: FilePart
) -> Outcome:
    return Outcome(kind=OutcomeKind.GIVE_UP, detail="no files")


async def _ignore_parked(_tx: Transaction, _due: DueDelivery) -> None:
    pass


@dataclass(kw_only=True)
class DeliveryWorkerHarness:
    """A delivery worker for some bots; several on one database and one set of leases are replicas."""

    database: Database
    bots: Mapping[str, ConnectedBot]
    leases: Leases = field(default_factory=MemoryLeases)
    wake_ups: WakeUps = field(default_factory=MemoryWakeUps)
    checkpoint: Callable[[str], None] = _check_fault_point
    receipts: SendReceipts | None = None
    patience_seconds: float = 5.0
    wrap_sink: Callable[[Sink], Sink] = lambda sink: sink
    schedule: RetrySchedule = FAST_RETRIES
    attach: AttachFile = _refuse_file
    on_parked: Callable[[Transaction, DueDelivery], Awaitable[None]] = _ignore_parked
    slow_seconds: float = 3.0
    claims_at_once: bool = False

    def __post_init__(self) -> None:
        """Put the parts together."""
        self.stream = MemoryEvents()
        relay = Relay(self.database, self.stream, self.checkpoint)
        router = Router(lambda _channel: UNKNOWN_LIMITS)
        self.transactions = Transactions(self.database, relay, router, self.wake_ups, self.checkpoint)
        self._worker = DeliveryWorker(
            self._sink_config(),
            transactions=self.transactions,
            leases=self.leases,
            wake_ups=self.wake_ups,
            checkpoint=self.checkpoint,
            receipts=self.receipts,
        )
        if self.claims_at_once:
            self.transactions.claim_deliveries(WorkQueue.DELIVER, self._worker.immediate_sends())

    def _sink_config(self) -> SinkConfig:
        chat_sink = ChatSink(self.bots.get, rate_wait_seconds=self.patience_seconds, attach=self.attach)
        return SinkConfig(
            queue=WorkQueue.DELIVER,
            sink=self.wrap_sink(chat_sink),
            schedule=self.schedule,
            slow_seconds=self.slow_seconds,
            on_parked=self.on_parked,
            ordered=True,
            repeatable=False,
            policy=lambda delivery: self._bot(delivery).policy,
            resolves=lambda delivery: ChannelFeature.FIND in self._bot(delivery).features,
            bot_destination=self._bot_destination,
            on_bot_paused=self._on_bot_paused,
        )

    def _on_bot_paused(self, destination: str, seconds: float) -> None:
        self.bots[json.loads(destination)[0]].rate_limiter.pause_account(seconds, of=destination)

    def _bot_destination(self, destination: str) -> str:
        channel, room = json.loads(destination)
        return self.bots[channel].bot_destination(Address(channel=channel, room=room))

    def _bot(self, delivery: Delivery) -> ConnectedBot:
        return self.bots[Address.decode(delivery.target).channel]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work until the block ends."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._worker.run(stop))
            group.create_task(self.transactions.run(stop))
            try:
                yield
            finally:
                stop.set()

    async def create_deliveries(
        self, address: Address, texts: Sequence[str], conversation: str | None = None
    ) -> str:
        """Create deliveries of one text in several parts to a chat; returns the conversation."""
        return await self.create_parts(address, [Part(text=text) for text in texts], conversation)

    async def create_parts(
        self,
        address: Address,
        parts: Sequence[Part],
        conversation: str | None = None,
        *,
        urgent: bool = False,
    ) -> str:
        """Create deliveries of one event in several parts to a chat; returns the conversation."""
        opened, conversation = conversation is None, conversation or new_id("cnv")
        text = "".join(part.text for part in parts)
        event = Event.now(EventType.MESSAGE_COMPLETED, conversation, {"text": text, "urgent": urgent})
        planned = [
            NewDelivery(
                account=ACCOUNT,
                event=event,
                kind=RouteKind.CHAT,
                target=address.encode(),
                destination=address.destination,
                part=place,
                body=encode_part(part),
                ordering_key=ordering_key(event, part),
            )
            for place, part in enumerate(parts)
        ]
        async with self.database.begin() as connection:
            if opened:
                await outbox.create_stream(
                    connection, conversation=conversation, account=ACCOUNT, agent="agt_1"
                )
            await store.create(connection, planned)
        await self.wake_worker(address)
        return conversation

    async def wake_worker(self, address: Address) -> None:
        """Have the worker check a chat."""
        await self.wake_ups.publish(WorkQueue.DELIVER, address.destination, account=ACCOUNT)

    async def wait_until_idle(self, address: Address) -> None:
        """Wait until the worker runs and has nothing to do for a chat."""
        worker = self._worker._keyed_worker
        async with asyncio.timeout(30):
            while worker._group is None or address.destination in worker._wake_again:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)

    async def list_deliveries(self, conversation: str) -> list[DeliveryView]:
        """Return a conversation's deliveries, in order."""
        async with self.database.read() as connection:
            found = await queries.list_for_account(
                connection, ACCOUNT, conversation=conversation, limit=10_000
            )
        return sorted(found, key=lambda one: one.part)

    async def states(self, conversation: str) -> list[str]:
        """Return their states."""
        return [one.state for one in await self.list_deliveries(conversation)]

    async def wait_for_states(
        self, conversation: str, *states: str, seconds: float = 30.0
    ) -> list[DeliveryView]:
        """Wait until all of a conversation's deliveries are in one of these states."""
        async with asyncio.timeout(seconds):
            while True:
                found = await self.list_deliveries(conversation)
                if all(one.state in states for one in found):
                    return found
                await asyncio.sleep(0.01)


@asynccontextmanager
async def open_empty_database(file: Path) -> AsyncIterator[Database]:
    """Open a new database with every table."""
    database = Database(await migrated_sqlite(file))
    yield database
    await database.close()
