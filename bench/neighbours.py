"""Measure how long the turn of one account takes while another account asks for all that it can.

    python -m bench.neighbours [--rounds 5] [--samples 20] [--turns 150] [--connections 200]
    python -m bench.neighbours --load everything --turns 1000 --connections 10000

The quiet account runs turns of two kinds, one after the other: a plain reply, and a command in a sandbox.
In each round it is measured idle, and then under one load of the busy account: turns that reply, turns that
run commands; connections, sleeping turns and requests that are refused; or everything together, with hostile
texts and frames. Idle and loaded measurements alternate, because other work on the machine changes both. The
ratio compares the p95 of all rounds. A connection that the gateway refuses is tried again every second, and
the table has the number of those that were open at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from api_server import ADMIN_KEY, ApiClient
from gateway_process import gateway

QUIET_TURNS = {"reply": "hello", "command": "!echo pig''eon"}
ENDS = ("completed", "failed", "cancelled")
POLL_SECONDS = 0.02
TURN_SECONDS = 120.0
DEPTH = 50_000
HOSTILE_TEXTS = (
    "(" * DEPTH,
    "!" + "$(" * DEPTH,
    "!echo " + "'\"" * DEPTH,
    "/" + "a" * DEPTH,
    "**_`" * DEPTH,
    "[" * DEPTH + "](" * DEPTH,
    "\u202e\u200b" * DEPTH,
)
"""Texts that are made for slow parsers."""
HOSTILE_FRAMES = (
    "[" * DEPTH,
    "{" * DEPTH,
    '{"type":"subscribe","conversation":"' + "x" * DEPTH + '"}',
    '{"type":"send","text":' + "9" * DEPTH + "}",
)
"""WebSocket frames of the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """A gateway with a busy account, which has a load to run, and a quiet one, which is measured."""

    busy: ApiClient
    quiet: ApiClient
    agents: dict[str, str]
    connections: int
    """WebSockets that the busy account wants to hold."""
    open_sockets: set[object] = field(default_factory=set)

    async def post_turn(self, client: ApiClient, text: str) -> str:
        """Queue a turn in a conversation of its own; returns its id, or nothing if it is refused."""
        made = await client.call("POST", f"/agents/{self.agents[client.key]}/turns", {"input": text})
        return str(made.body["turnId"]) if made.status == 202 else ""

    async def wait_for_end(self, client: ApiClient, turn: str, *, poll: float) -> None:
        """Wait until a turn has ended; returns at once if it was refused."""
        while turn and (await client.call("GET", f"/status/{turn}")).body.get("state") not in ENDS:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(poll)

    async def time_turn(self, text: str) -> float:
        """Return the seconds from the request of the quiet account to the end of its turn."""
        begun = time.perf_counter()
        turn = await self.post_turn(self.quiet, text)
        async with asyncio.timeout(TURN_SECONDS):
            await self.wait_for_end(self.quiet, turn, poll=POLL_SECONDS)
        return time.perf_counter() - begun


Load = Callable[[Neighbours, int], Coroutine[None, None, None]]


async def run_commands(neighbours: Neighbours, turns: int) -> None:
    """Keep so many turns in the gateway that each run a short command in a sandbox."""
    await asyncio.gather(*(_repeat_turn(neighbours, "!true") for _ in range(turns)))


async def run_replies(neighbours: Neighbours, turns: int) -> None:
    """Keep so many turns in the gateway that each reply at once."""
    await asyncio.gather(*(_repeat_turn(neighbours, "hello") for _ in range(turns)))


async def _repeat_turn(neighbours: Neighbours, text: str) -> None:
    busy = neighbours.busy
    while True:
        with suppress(aiohttp.ClientError, OSError):
            turn = await neighbours.post_turn(busy, text)
            await neighbours.wait_for_end(busy, turn, poll=1.0)
        await asyncio.sleep(0.1)


async def hold_connections(neighbours: Neighbours, turns: int) -> None:
    """Queue sleeping turns, hold WebSockets, and send hostile bodies without a pause."""
    for _ in range(turns):
        await neighbours.post_turn(neighbours.busy, "!sleep 60")
    await asyncio.gather(_hold_sockets(neighbours), *_hostile_requests(neighbours))


async def load_everything(neighbours: Neighbours, turns: int) -> None:
    """Keep turns of both kinds in the gateway, hold WebSockets, and send every hostile text and frame."""
    await asyncio.gather(
        run_commands(neighbours, turns // 2),
        run_replies(neighbours, turns - turns // 2),
        _hold_sockets(neighbours),
        *_hostile_requests(neighbours),
        *(_repeat_turn(neighbours, text) for text in HOSTILE_TEXTS),
        *(_repeat_frame(neighbours, frame) for frame in HOSTILE_FRAMES),
    )


async def _hold_sockets(neighbours: Neighbours) -> None:
    await asyncio.gather(*(_hold_socket(neighbours) for _ in range(neighbours.connections)))


async def _hold_socket(neighbours: Neighbours) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            async with _socket(neighbours) as socket:
                neighbours.open_sockets.add(socket)
                try:
                    async for _ in socket:
                        pass
                finally:
                    neighbours.open_sockets.discard(socket)
        await asyncio.sleep(1.0)


def _socket(neighbours: Neighbours) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {neighbours.busy.key}"}
    return neighbours.busy.session.ws_connect(f"{neighbours.busy.url}/ws", headers=headers)


def _hostile_requests(neighbours: Neighbours) -> Sequence[Coroutine[None, None, None]]:
    path = f"/agents/{neighbours.agents[neighbours.busy.key]}/turns"
    return [_repeat_request(neighbours, path, {"input": [["a"] * 10_000]}) for _ in range(4)]


async def _repeat_request(neighbours: Neighbours, path: str, body: object) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            await neighbours.busy.call("POST", path, body)


async def _repeat_frame(neighbours: Neighbours, frame: str) -> None:
    """Send a frame, on a new connection each time that the gateway closes it."""
    while True:
        with suppress(aiohttp.ClientError, OSError):
            async with _socket(neighbours) as socket:
                while not socket.closed:
                    await socket.send_str(frame)
                    await socket.receive()
        await asyncio.sleep(0.1)


LOADS: dict[str, Load] = {
    "replies": run_replies,
    "commands": run_commands,
    "connections and hostile requests": hold_connections,
    "everything": load_everything,
}


async def _add_agent(client: ApiClient) -> str:
    config = {"model": "builtin:shell"}
    made = await client.call("POST", "/accounts/me/agents", {"name": "shell", "config": config})
    return str(made.body["id"])


@asynccontextmanager
async def open_neighbours(directory: Path, *, connections: int) -> AsyncIterator[Neighbours]:
    """Run a gateway with its default pools and two accounts, whose requests are not limited by rate."""
    env = {
        "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
        "DOVECOTE_ALLOW_SHARED_HOST": "true",
        "DOVECOTE_DRAIN_TIMEOUT": "0",
        "DOVECOTE_LOG_LEVEL": "error",
        "DOVECOTE_REQUESTS_PER_MINUTE": "1000000",
    }
    async with (
        gateway(directory, env=env) as process,
        _client_session("127.0.0.1") as session,
        _client_session("127.0.0.2") as quiet_session,
    ):
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        made = await operator.call("POST", "/accounts", {"name": "quiet"})
        busy = ApiClient(session=session, url=process.url, key=process.key)
        quiet = ApiClient(session=quiet_session, url=process.url, key=made.body["key"])
        agents = {client.key: await _add_agent(client) for client in (busy, quiet)}
        yield Neighbours(busy=busy, quiet=quiet, agents=agents, connections=connections)


def _client_session(address: str) -> aiohttp.ClientSession:
    """Open a session of a client with this address: connections are limited by address."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, local_addr=(address, 0)))


Samples = dict[tuple[str, str], list[float]]
"""Seconds of turns by load and kind of turn."""


async def _measure(neighbours: Neighbours, load: str, samples: int, into: Samples) -> None:
    for _ in range(samples):
        for kind, text in QUIET_TURNS.items():
            into[load, kind].append(await neighbours.time_turn(text))


async def measure_load(load: str, *, rounds: int, samples: int, turns: int, connections: int) -> Samples:
    """Measure the quiet account idle and under a load, alternating; each round has a gateway of its own."""
    taken: Samples = defaultdict(list)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            async with open_neighbours(Path(directory) / "data", connections=connections) as neighbours:
                await _measure(neighbours, "warm-up", 1, defaultdict(list))
                await _measure(neighbours, "idle", samples, taken)
                running = asyncio.ensure_future(LOADS[load](neighbours, turns))
                try:
                    await asyncio.sleep(5.0)
                    await _measure(neighbours, load, samples, taken)
                finally:
                    taken[load, "sockets"].append(len(neighbours.open_sockets))
                    running.cancel()
                    with suppress(asyncio.CancelledError, aiohttp.ClientError):
                        await running
    return taken


def rows(load: str, taken: Samples) -> list[str]:
    """Return the lines of the table for one load."""
    lines = []
    for kind in QUIET_TURNS:
        idle, loaded = (_quantiles(taken[name, kind]) for name in ("idle", load))
        cells = [*(f"{1000 * value:,.0f}" for value in (*idle, *loaded)), f"{loaded[1] / idle[1]:.1f}"]
        sockets = f"{statistics.median(taken[load, 'sockets']):,.0f}"
        lines.append(f"| {load} | {kind} | {' | '.join(cells)} | {sockets} |")
    return lines


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    return statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]


def _raise_file_limit() -> None:
    """Allow this process, and the gateway that it starts, as many open files as the system does."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--turns", type=int, default=150)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--load", action="append", choices=LOADS, help="default: every load")
    given = parser.parse_args()
    _raise_file_limit()
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
    print("| load | turn | idle p50 ms | idle p95 ms | p50 ms | p95 ms | p95 ÷ idle p95 | open sockets |")
    print("|---|---|---|---|---|---|---|---|")
    for load in given.load or LOADS:
        taken = asyncio.run(
            measure_load(
                load,
                rounds=given.rounds,
                samples=given.samples,
                turns=given.turns,
                connections=given.connections,
            )
        )
        print("\n".join(rows(load, taken)), flush=True)


if __name__ == "__main__":
    main()
