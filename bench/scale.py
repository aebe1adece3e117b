"""Measure what grows with rows and with conversations: each cost at 10^4 and at 10^5, and their ratio.

    python -m bench.scale [--small 10000] [--large 100000] [--only sql|nats] [--check]

SQL: the regular work of a process over finished deliveries and published events, on SQLite and, if its
programs are installed, on PostgreSQL. NATS: a server with one conversation for each subject, as the gateway
configures it. CPU is that of the nats-server, or of this process for SQLite. `--check` ends with 1 if a cost
that must not grow has a ratio above the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median

from sqlalchemy import insert

from bench import meters
from delivery.broker import jetstream_events
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.stream_config import EVENTS, StreamConfig, ensure_streams
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries, outbox, streams
from delivery.events.event import Event, EventType
from delivery.events.relay import Relay
from delivery.events.replay import Events, frames
from gateway.config.setting_types import RetentionSettings
from gateway.maintenance.janitor import Janitor
from gateway.maintenance.retention import RetentionTask
from gateway.migrations import migrate_up
from gateway.observability.gauges import QueueGauges
from gateway.observability.metrics import Metrics
from nats_servers import NatsServer, nats_server
from postgres import PostgresUnavailable, postgres_cluster
from shard_replicas import ShardReplica, shard_replica, until_divided

MAX_RATIO = 1.5
REPEATS = 7
SAMPLES = 200
"""Conversations that are read, and turns that are written."""
APPENDS = 5000
"""Appends that are measured: the kernel counts CPU time in hundredths of a second."""
ROWS_AT_ONCE = 2000
APPENDS_AT_ONCE = 200
EVENTS_OF_A_TURN = 6
LEASES_OF_A_TURN = 2
DELTAS_OF_A_TURN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A measured cost; `may_grow` with the size, as memory does."""

    name: str
    value: float
    may_grow: bool = False


async def sql_costs(url: str, rows: int) -> list[Cost]:
    """Fill a database, and measure the regular work of one process in milliseconds."""
    await migrate_up(url)
    database = Database(url)
    try:
        await _fill_database(database, rows)
        relay = Relay(database, MemoryEvents(), lambda _point: None)
        janitor = Janitor(database, relay, lambda *_args, **_named: None)
        gauges = QueueGauges(database, Metrics())
        retention = RetentionTask(database, RetentionSettings(), pause=0)
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "janitor, every 2 s": lambda: janitor.run_once(timedelta(0)),
            "gauges, every 10 s": gauges.run_once,
            "deletion of published events, every hour": janitor.delete_old,
        }
        kind = "SQLite" if database.is_sqlite else "PostgreSQL"
        costs = [
            Cost(name=f"{kind}: {name}, ms", value=await _median_ms(step)) for name, step in work.items()
        ]
        seconds = await _median_ms(lambda: retention.run_once(asyncio.Event()), repeats=1)
        return [
            *costs,
            Cost(name=f"{kind}: retention of all tables, every hour, ms", value=seconds, may_grow=True),
        ]
    finally:
        await database.close()


async def _fill_database(database: Database, rows: int) -> None:
    """Insert finished deliveries and published events of one conversation."""
    now = utc_now()
    stream = {"conversation": "cnv_scale", "account": "acc_scale", "agent": "agt_scale", "active_at": now}
    async with database.begin() as connection:
        await connection.execute(insert(streams).values(**stream, last_n=rows, relayed_n=rows, last_seq=rows))
    for start in range(0, rows, ROWS_AT_ONCE):
        numbers = range(start, min(rows, start + ROWS_AT_ONCE))
        async with database.begin() as connection:
            await connection.execute(
                insert(deliveries),
                [
                    {
                        "id": f"dlv_{number}",
                        "account": "acc_scale",
                        "event_id": f"evt_{number}",
                        "event_type": "message.completed",
                        "event_time": now,
                        "conversation": "cnv_scale",
                        "kind": "chat",
                        "target": "[]",
                        "destination": f"chat {number % 1000}",
                        "part": 0,
                        "body": b"x" * 200,
                        "state": "delivered",
                        "armed_at": now,
                        "created_at": now,
                        "updated_at": now,
                    }
                    for number in numbers
                ],
            )
            await connection.execute(
                insert(outbox),
                [
                    {
                        "event_id": f"evt_{number}",
                        "conversation": "cnv_scale",
                        "account": "acc_scale",
                        "n": number + 1,
                        "type": "message.completed",
                        "body": b"x" * 200,
                        "created_at": now,
                    }
                    for number in numbers
                ],
            )


async def _median_ms(step: Callable[[], Awaitable[None]], repeats: int = REPEATS) -> float:
    taken = []
    await step()
    for _ in range(repeats):
        began = time.perf_counter()
        await step()
        taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broker:
    server: NatsServer
    nats: NatsConnection
    events: JetStreamEvents

    @contextmanager
    def cpu_ms(self, into: list[float], *, count: int) -> Iterator[None]:
        """Append the CPU milliseconds of the server for each of `count` actions."""
        before = meters.alone(self.server.pid)
        yield
        into.append((meters.alone(self.server.pid) - before) * 1000 / count)


@asynccontextmanager
async def _broker(directory: Path) -> AsyncIterator[_Broker]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(directory))
        nats = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure_streams(nats, StreamConfig(max_bytes=1_900_000_000))
        events = await stack.enter_async_context(jetstream_events.open_events(nats, epoch="bench"))
        yield _Broker(server=server, nats=nats, events=events)


async def nats_costs(directory: Path, conversations: int) -> list[Cost]:
    """Fill a server with conversations, and measure what one more action costs it."""
    async with _broker(directory) as broker:
        first = await _append_to_each(broker.events, range(conversations), n=1, after={})
        sample, appended = range(SAMPLES), range(min(APPENDS, conversations))
        append, replay = list[float](), list[float]()
        with broker.cpu_ms(append, count=len(appended)):
            await _append_to_each(broker.events, appended, n=2, after=first)
        with broker.cpu_ms(replay, count=SAMPLES):
            for number in sample:
                assert await _count_replayed(broker.events, _conversation(number)) == 2
        turns = await _turn_costs(broker)
        return [
            Cost(name="NATS: append, CPU ms", value=append[0]),
            Cost(name="NATS: replay of two events far apart, CPU ms", value=replay[0]),
            *turns,
            Cost(name="NATS: memory, MB", value=meters.resident(broker.server.pid), may_grow=True),
            Cost(name="NATS: restart after a kill, s", value=await _restart_seconds(broker), may_grow=True),
        ]


def _conversation(number: int) -> str:
    return f"cnv_{number}"


def _event(number: int, n: int) -> Event:
    return Event.now(
        EventType.JOB_STARTED, _conversation(number), {"text": "x" * 300}, turn="trn_1"
    ).numbered(n)


async def _append_to_each(
    events: JetStreamEvents, numbers: range, *, n: int, after: dict[int, int]
) -> dict[int, int]:
    """Append one event to each conversation; returns the seqs."""
    seqs: dict[int, int] = {}

    async def append(number: int) -> None:
        seqs[number] = await events.append(_event(number, n), expected=after.get(number, 0), account="acc")

    for start in range(0, len(numbers), APPENDS_AT_ONCE):
        await asyncio.gather(*(append(number) for number in numbers[start : start + APPENDS_AT_ONCE]))
    return seqs


async def _count_replayed(events: JetStreamEvents, conversation: str) -> int:
    found = frames(events, conversation, after=0, live=False, account="acc")
    return sum([len(frame.items) async for frame in found if isinstance(frame, Events)])


async def _turn_costs(broker: _Broker) -> list[Cost]:
    """Measure the events of a turn; with its leases, as replicas have them; and with deltas."""
    async with shard_replica(broker.server.url, broker.server.token, "bench", ttl=6.0) as replica:
        await until_divided(replica)
        return await _costs_of_turns(broker, replica)


async def _costs_of_turns(broker: _Broker, replica: ShardReplica) -> list[Cost]:
    costs = []
    for name, with_leases, deltas in (
        ("events", False, 0),
        ("events and leases", True, 0),
        ("events and deltas", False, DELTAS_OF_A_TURN),
    ):
        cpu, before = list[float](), await _stored_bytes(broker.nats)
        with broker.cpu_ms(cpu, count=SAMPLES):
            for number in range(SAMPLES):
                await _write_turn(broker.events, f"cnv_{name}_{number}", deltas=deltas)
                for place in range(LEASES_OF_A_TURN if with_leases else 0):
                    async with replica.leases.acquire(f"t:{number}:{place}"):
                        pass
            await broker.events.remove_deltas()
        stored = (await _stored_bytes(broker.nats) - before) / SAMPLES / 1000
        costs.append(Cost(name=f"NATS: {name} of a turn, CPU ms", value=cpu[0]))
        costs.append(Cost(name=f"NATS: {name} of a turn, KB stored", value=stored))
    return costs


async def _write_turn(events: JetStreamEvents, conversation: str, *, deltas: int) -> None:
    seq = 0
    for n in range(1, EVENTS_OF_A_TURN + 1):
        is_last = n == EVENTS_OF_A_TURN
        for number in range(deltas if is_last else 0):
            data = {"message": "msg_1", "part": number, "text": "x" * 300}
            delta = Event.now(EventType.MESSAGE_DELTA, conversation, data, turn="trn_1")
            await events.publish_transient(delta, account="acc")
        kind = EventType.TURN_COMPLETED if is_last else EventType.JOB_STARTED
        event = Event.now(kind, conversation, {"text": "x" * 300}, turn="trn_1").numbered(n)
        seq = await events.append(event, expected=seq, account="acc")


async def _stored_bytes(nats: NatsConnection) -> int:
    return int((await nats.api_request(f"STREAM.INFO.{EVENTS}"))["state"]["bytes"])


async def _restart_seconds(broker: _Broker) -> float:
    """Kill the server, and return the seconds until the event log answers again."""
    began = time.perf_counter()
    await broker.server.restart()
    await ensure_streams(broker.nats, StreamConfig(max_bytes=1_900_000_000), timeout=120)
    return time.perf_counter() - began


async def _all_costs(size: int, only: str | None, postgres: str | None) -> list[Cost]:
    with tempfile.TemporaryDirectory() as place:
        costs: list[Cost] = []
        if only != "nats":
            costs += await sql_costs(f"sqlite+aiosqlite:///{place}/scale.db", size)
            costs += await sql_costs(postgres, size) if postgres else []
        if only != "sql":
            costs += await nats_costs(Path(place) / "nats", size)
        return costs


def rows(small: list[Cost], large: list[Cost]) -> list[tuple[object, ...]]:
    """Return the lines of the table."""
    return [
        (one.name, f"{one.value:.3g}", f"{other.value:.3g}", f"{_ratio(one, other):.2f}")
        for one, other in zip(small, large, strict=True)
    ]


def grown(small: list[Cost], large: list[Cost]) -> list[str]:
    """Return the names of the costs that grow and must not."""
    pairs = zip(small, large, strict=True)
    return [one.name for one, other in pairs if not one.may_grow and _ratio(one, other) > MAX_RATIO]


def _ratio(small: Cost, large: Cost) -> float:
    return large.value / small.value if small.value else 1.0


def main() -> int:
    """Measure both sizes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--only", choices=("sql", "nats"))
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
    with _postgres(needed=given.only != "nats") as create:
        small, large = (
            asyncio.run(_all_costs(size, given.only, create() if create else None))
            for size in (given.small, given.large)
        )
    meters.print_table(("cost", f"at {given.small:,}", f"at {given.large:,}", "ratio"), rows(small, large))
    too_much = grown(small, large)
    if too_much:
        print(f"\nThese grow by more than {MAX_RATIO}: {'; '.join(too_much)}")
    return 1 if given.check and too_much else 0


@contextmanager
def _postgres(*, needed: bool) -> Iterator[Callable[[], str] | None]:
    """Run PostgreSQL, if its programs are installed; yields what creates a database."""
    if not needed:
        yield None
        return
    with ExitStack() as stack:
        try:
            create: Callable[[], str] | None = stack.enter_context(postgres_cluster()).create_database
        except PostgresUnavailable as error:
            print(f"PostgreSQL is not measured: {error}\n")
            create = None
        yield create


if __name__ == "__main__":
    sys.exit(main())
