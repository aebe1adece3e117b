"""G17: measure how soon the other replica continues the work of one that is stopped with SIGTERM.

    python -m bench.drain [--times 5]

Two replicas run over PostgreSQL and one nats-server, with leases of 40 s: anything taken over sooner was
handed over. A turn is running when its replica is stopped. The table has the time to the exit, and from there
to the turn's next attempt.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.deployment import open_deployment
from gateway_process import GatewayProcess

LEASE = "40"
ENVIRONMENT = {"DOVECOTE_LEASE_TTL": LEASE, "DOVECOTE_DRAIN_TIMEOUT": "1"}
STARTS_WITHIN = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverTimes:
    """Seconds from SIGTERM to the exit, and from there to the turn's next attempt (negative: before it)."""

    stopped: float
    taken_over: float


async def stop_and_wait(process: GatewayProcess) -> float:
    """Send SIGTERM and return how long the process took to exit with code 0."""
    begun = time.monotonic()
    code = await process.kill(signal.SIGTERM)
    assert code == 0, process.log[-20:]
    return time.monotonic() - begun


async def hand_over(one: GatewayProcess, two: GatewayProcess, *, conversation: str) -> HandoverTimes:
    """Stop the replica that runs a long turn; the other replica started after the turn began."""
    await stop_and_wait(two)
    body = {"input": "!sleep 15; echo pigeon", "conversation": conversation}
    async with one.http() as session, session.post("/agents/default/turns", json=body) as answer:
        assert answer.status == 202
    await _wait_for_attempt(one, conversation, attempt=1)
    await two.start(wait=False)
    await two.until_ready(STARTS_WITHIN)
    beginning = asyncio.create_task(_wait_for_attempt(two, conversation, attempt=2))
    stopped = await stop_and_wait(one)
    gone = time.monotonic()
    return HandoverTimes(stopped=stopped, taken_over=await beginning - gone)


async def _wait_for_attempt(process: GatewayProcess, conversation: str, *, attempt: int) -> float:
    """Follow the conversation until its turn's nth attempt starts; return when."""
    async with asyncio.timeout(60), process.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": conversation, "after": 0})
        while True:
            frame = await socket.receive_json()
            if frame["type"] == "turn.started" and frame["data"]["attempt"] == attempt:
                return time.monotonic()


async def main(times: int) -> None:
    """Print a line for each handover."""
    print("| hand-over | from SIGTERM to exit | from exit to the next attempt |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        async with open_deployment(Path(directory), replicas=2, env=ENVIRONMENT) as deployment:
            one, two = deployment.replicas
            for place in range(times):
                handed = await hand_over(one, two, conversation=f"handed over {place}")
                print(f"| {place + 1} | {handed.stopped:.2f} s | {handed.taken_over:.2f} s |", flush=True)
                await one.start(wait=False)
                await one.until_ready(STARTS_WITHIN)
                one, two = two, one
    print(f"\nLeases of {LEASE} s. Python {platform.python_version()}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    asyncio.run(main(parser.parse_args().times))
