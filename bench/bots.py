"""Measure how two replicas share bots: how many each receives for, and how soon after a start and a kill.

    python -m bench.bots [--bots 200]

Real gateways run over PostgreSQL and a nats-server of their own. Every bot polls its own simulated Telegram.
The second replica starts when the first one receives for all bots; then it is killed with SIGKILL. At the end
a user writes to each bot: every message is answered once.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench import meters
from bench.chaos.deployment import KEYS, READY_WITHIN, REPLICAS, large_nats_server
from bench.chat_replicas import count_bots
from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess
from postgres import postgres_cluster

CHAT = 1_000_000
"""Also the id of the user, which no bot has."""
WITHIN = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBots:
    """Seconds until the bots were shared or taken over, and how many messages were lost or doubled."""

    shares: tuple[int, int]
    sharing_seconds: float
    takeover_seconds: float
    megabytes: float
    lost: int
    doubled: int


@asynccontextmanager
async def open_replicas(
    directory: Path, bots: int
) -> AsyncIterator[tuple[Sequence[GatewayProcess], Sequence[Simulator]]]:
    """Start the first of two replicas, with so many bots."""
    async with AsyncExitStack() as stack:
        platforms = [
            await stack.enter_async_context(simulate(token=f"{number}:bench"))
            for number in range(1, bots + 1)
        ]
        nats = large_nats_server(directory / "nats")
        await nats.start()
        stack.push_async_callback(nats.stop)
        env = {
            "DOVECOTE_LOG_LEVEL": "warning",
            "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
            "DOVECOTE_DATABASE_URL": stack.enter_context(postgres_cluster()).create_database(),
            "DOVECOTE_SECRET_KEYS": KEYS,
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
            **REPLICAS,
        }
        replicas = [GatewayProcess(directory / f"replica{place}", env=env) for place in range(2)]
        for process in replicas:
            stack.push_async_callback(process.stop)
        await _start(replicas[0])
        async with replicas[0].http() as session:
            for number, platform in enumerate(platforms):
                channel = {"name": f"bot{number}", "kind": "telegram", "agent": "default"}
                body = channel | {"settings": platform.settings()}
                async with session.post("/accounts/me/channels", json=body) as answer:
                    assert answer.status == 201, await answer.text()
        yield replicas, platforms


async def _start(process: GatewayProcess) -> None:
    await process.start(wait=False)
    await process.until_ready(READY_WITHIN)


async def _seconds_until(bots: int, *replicas: GatewayProcess) -> float:
    """Return when each of these replicas has a share, and together they have all bots."""
    begun = time.monotonic()
    async with asyncio.timeout(WITHIN):
        while True:
            counts = [await count_bots(process) for process in replicas]
            if sum(counts) == bots and all(counts):
                return time.monotonic() - begun
            await asyncio.sleep(0.1)


async def measure(bots: int, directory: Path) -> SharedBots:
    """Let a replica join and die, and return what became of the bots."""
    async with open_replicas(directory, bots) as (replicas, platforms):
        first, second = replicas
        await _seconds_until(bots, first)
        await _start(second)
        sharing = await _seconds_until(bots, first, second)
        shares = await count_bots(first), await count_bots(second)
        megabytes = meters.resident(first.pid)
        await second.kill()
        takeover = await _seconds_until(bots, first)
        await asyncio.gather(*(platform.say(CHAT, "hello") for platform in platforms))
        answers = await asyncio.gather(*(_count_answers(platform) for platform in platforms))
    return SharedBots(
        shares=shares,
        sharing_seconds=sharing,
        takeover_seconds=takeover,
        megabytes=megabytes,
        lost=sum(count == 0 for count in answers),
        doubled=sum(max(0, count - 1) for count in answers),
    )


async def _count_answers(platform: Simulator) -> int:
    with suppress(TimeoutError):  # it is counted as lost
        await platform.wait_for_messages(1, chat=CHAT, seconds=WITHIN)
    return len(platform.messages(CHAT))


async def main(bots: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as directory:
        found = await measure(bots, Path(directory))
    print("| bots | first | second | shared after s | taken over after s | MB | lost | doubled |")
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {bots} | {found.shares[0]} | {found.shares[1]} | {found.sharing_seconds:.1f} "
        f"| {found.takeover_seconds:.1f} | {found.megabytes:.0f} | {found.lost} | {found.doubled} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bots", type=int, default=200)
    asyncio.run(main(parser.parse_args().bots))
