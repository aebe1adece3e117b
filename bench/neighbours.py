"""Measure how long the turn of one account takes while another account asks for all that it can.

    python -m bench.neighbours [--rounds 5] [--samples 20] [--turns 150] [--connections 200]
    python -m bench.neighbours --load everything --turns 1000 --connections 10000

The quiet account runs turns of two kinds, one after the other: a plain reply, and a command in a sandbox.
In each round it is measured idle, and then under one load of the busy account: turns that reply, turns that
run commands; connections, sleeping turns and requests that are refused; or everything together, with
hostile texts and frames. Idle and loaded measurements alternate, because other work on the machine changes
both. The ratio compares the p95 of all rounds. The same load on another gateway of the machine shows what
the shared processors and disk cost: accounts of one gateway cannot be better separated than two gateways. A
connection that the gateway refuses is tried again every second, and the table has the number of those that
were open at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from api_server import ADMIN_KEY, ApiClient
from bench.busy_account import LOADS, queue_turn, wait_for_end
from gateway_process import gateway

QUIET_TURNS = {"reply": "hello", "command": "!echo pig''eon"}
POLL_SECONDS = 0.02
SETTLING_SECONDS = 5.0
CONNECTIONS_PER_SECOND = 400
"""How long a load runs before the quiet account is measured: some seconds, and the time to connect."""

TURN_SECONDS = 120.0
ELSEWHERE = " on another gateway"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """A gateway with a busy account, which another process uses, and a quiet one, which is measured."""

    busy: ApiClient
    quiet: ApiClient
    agents: dict[str, str]

    async def time_turn(self, text: str) -> float:
        """Return the seconds from the request of the quiet account to the end of its turn."""
        begun = time.perf_counter()
        turn = await queue_turn(self.quiet, self.agents[self.quiet.key], text)
        async with asyncio.timeout(TURN_SECONDS):
            await wait_for_end(self.quiet, turn, poll=POLL_SECONDS)
        return time.perf_counter() - begun

    @asynccontextmanager
    async def load(self, name: str, turns: int, connections: int) -> AsyncIterator[list[int]]:
        """Run a load during the block; afterwards the list has the number of WebSockets that were open."""
        agent = self.agents[self.busy.key]
        arguments = ["-m", "bench.busy_account", self.busy.url, agent, name, str(turns), str(connections)]
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT
        )
        assert child.stdin is not None
        child.stdin.write(f"{self.busy.key}\n".encode())
        open_sockets = list[int]()
        try:
            yield open_sockets
        finally:
            reported, _ = await child.communicate(b"")
            open_sockets.append(int(reported))


async def _add_agent(client: ApiClient) -> str:
    config = {"model": "builtin:shell"}
    made = await client.call("POST", "/accounts/me/agents", {"name": "shell", "config": config})
    return str(made.body["id"])


@asynccontextmanager
async def open_neighbours(directory: Path) -> AsyncIterator[Neighbours]:
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
        yield Neighbours(busy=busy, quiet=quiet, agents=agents)


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
    """Measure the quiet account idle and under a load, alternating; each round has gateways of its own."""
    taken: Samples = defaultdict(list)
    settling = SETTLING_SECONDS + connections / CONNECTIONS_PER_SECOND
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            async with open_neighbours(root / "own") as own, open_neighbours(root / "other") as other:
                await _measure(own, "warm-up", 1, defaultdict(list))
                await _measure(own, "idle", samples, taken)
                for gateway_used, name in ((other, f"{load}{ELSEWHERE}"), (own, load)):
                    async with gateway_used.load(load, turns, connections) as open_sockets:
                        await asyncio.sleep(settling)
                        await _measure(own, name, samples, taken)
                    taken[name, "sockets"] += open_sockets
    return taken


def rows(load: str, taken: Samples) -> list[str]:
    """Return the lines of the table for one load, on another gateway and on the same."""
    lines = []
    for kind in QUIET_TURNS:
        for name in (f"{load}{ELSEWHERE}", load):
            idle, loaded = (_quantiles(taken[one, kind]) for one in ("idle", name))
            cells = [*(f"{1000 * value:,.0f}" for value in (*idle, *loaded)), f"{loaded[1] / idle[1]:.1f}"]
            sockets = f"{statistics.median(taken[name, 'sockets']):,.0f}"
            lines.append(f"| {name} | {kind} | {' | '.join(cells)} | {sockets} |")
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
