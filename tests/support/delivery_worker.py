"""The way of a chat delivery from its row to the platform, without a gateway around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from channels.message import Address
from channels.port import Feature
from delivery.broker.leases import MemoryLeases
from delivery.broker.memory_events import MemoryStream
from delivery.broker.port import Leases, Queue, Signals
from delivery.broker.wake_ups import MemorySignals
from delivery.chat.sink import Bot, ChatSink
from delivery.database.engine import Database, metadata
from delivery.deliveries import queries, store
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import Delivery, Sink
from delivery.deliveries.queries import Standing
from delivery.deliveries.retry_schedule import Schedule
from delivery.deliveries.route import RouteKind, bot_of
from delivery.deliveries.router import Router
from delivery.deliveries.send_receipts import Arrivals
from delivery.deliveries.store import Planned
from delivery.deliveries.transactions import Ledger
from delivery.deliveries.worker import Lane, Worker
from delivery.events import outbox
from delivery.events.event import Event, Kind, new_id
from delivery.events.relay import Relay
from gateway.ingress.channel_supervisor import UNKNOWN
from gateway.observability.fault_points import POINTS

ACCOUNT = "acc_1"
QUICK = Schedule(steps=(0.02,), lasts=600, jitter=0, obeys=True, rarely=900)


def _pass(point: str) -> None:
    assert point in POINTS, f"{point} is no fault point"


@dataclass(kw_only=True)
class Line:
    """A worker at work for some bots; several on one database and one set of leases are replicas."""

    database: Database
    bots: Mapping[str, Bot]
    leases: Leases = field(default_factory=MemoryLeases)
    signals: Signals = field(default_factory=MemorySignals)
    checkpoint: Callable[[str], None] = _pass
    arrivals: Arrivals | None = None
    patience: float = 5.0
    watched: Callable[[Sink], Sink] = lambda sink: sink

    def __post_init__(self) -> None:
        """Put the parts together."""
        self.stream = MemoryStream()
        relay = Relay(self.database, self.stream, self.checkpoint)
        router = Router(lambda _channel: UNKNOWN)
        self.ledger = Ledger(self.database, relay, router, self.signals, self.checkpoint)
        self._worker = Worker(
            self._lane(),
            ledger=self.ledger,
            leases=self.leases,
            signals=self.signals,
            checkpoint=self.checkpoint,
            arrivals=self.arrivals,
        )

    def _lane(self) -> Lane:
        return Lane(
            queue=Queue.DELIVER,
            sink=self.watched(ChatSink(self.bots.get, patience_seconds=self.patience)),
            schedule=QUICK,
            ordered=True,
            repeatable=False,
            policy=lambda delivery: self._bot(delivery).policy,
            resolves=lambda delivery: Feature.FIND in self._bot(delivery).features,
            wider=bot_of,
            told=self._told,
        )

    def _told(self, destination: str, seconds: float) -> None:
        self.bots[json.loads(destination)[0]].budget.hold(seconds)

    def _bot(self, delivery: Delivery) -> Bot:
        return self.bots[Address.load(delivery.target).channel]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work until the block ends."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._worker.run(stop))
            group.create_task(self.ledger.run(stop))
            try:
                yield
            finally:
                stop.set()

    async def owe(self, address: Address, texts: Sequence[str], conversation: str | None = None) -> str:
        """Oblige ourselves to say one thing in several parts in a chat; returns the conversation."""
        opened, conversation = conversation is None, conversation or new_id("cnv")
        event = Event.now(Kind.MESSAGE_COMPLETED, conversation, {"text": "".join(texts)})
        planned = [
            Planned(
                account=ACCOUNT,
                event=event,
                kind=RouteKind.CHAT,
                target=address.dump(),
                destination=address.destination,
                part=place,
                body=encode_part(Part(text=text)),
            )
            for place, text in enumerate(texts)
        ]
        async with self.database.begin() as connection:
            if opened:
                await outbox.open_stream(
                    connection, conversation=conversation, account=ACCOUNT, agent="agt_1"
                )
            await store.plan(connection, planned)
        await self.wake(address)
        return conversation

    async def wake(self, address: Address) -> None:
        """Have the worker look at a chat."""
        await self.signals.wake(Queue.DELIVER, address.destination)

    async def standing(self, conversation: str) -> list[Standing]:
        """Return how a conversation's deliveries stand, in order."""
        async with self.database.read() as connection:
            found = await queries.listed(connection, ACCOUNT, conversation=conversation, limit=10_000)
        return sorted(found, key=lambda one: one.part)

    async def states(self, conversation: str) -> list[str]:
        """Return their states."""
        return [one.state for one in await self.standing(conversation)]

    async def until(self, conversation: str, *states: str, seconds: float = 20.0) -> list[Standing]:
        """Wait until all of a conversation's deliveries are in one of these states."""
        async with asyncio.timeout(seconds):
            while True:
                found = await self.standing(conversation)
                if all(one.state in states for one in found):
                    return found
                await asyncio.sleep(0.01)


@asynccontextmanager
async def an_empty_database(url: str) -> AsyncIterator[Database]:
    """Open a database with every table of delivery."""
    database = Database(url)
    async with database.begin() as connection:
        await connection.run_sync(metadata.create_all)
    yield database
    await database.close()
