"""M4, M19: measure how long refusals take, so that the time does not reveal how wrong a secret was.

    python -m bench.refusal_timing [--samples 20000] [--requests 1200]

Verifiers get the right signature with an early or a late letter changed; the job completion endpoint gets an
unknown job, and a running job with a wrong token. The two kinds alternate. `noise` is the difference between
halves of the same kind: a difference below it means nothing. Discord's signatures are verified with a public
key, so there is no secret to reveal; a scalar that is too large is refused at once.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gateway_process import GatewayProcess, gateway
from signature_cases import BODY, SIGNATURE_CASES

CHANGED_POSITIONS = {"slack": (3, -1), "webhooks": (3, -3), "discord": (0, 63)}
"""Where an early and a late letter of each signature stand; of Discord's, in the half that is a point."""

FAILURES_PER_ADDRESS = 20
"""Failures from one address: fewer than those that lock it."""

WRONG_TOKEN = "wrong" * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalTimes:
    """Seconds of refusals of two kinds, in the order in which they were measured."""

    name: str
    one: Sequence[float]
    other: Sequence[float]

    def row(self) -> str:
        """Return a line of the table, in microseconds."""
        one, other = statistics.median(self.one), statistics.median(self.other)
        halves = [
            abs(statistics.median(kind[::2]) - statistics.median(kind[1::2]))
            for kind in (self.one, self.other)
        ]
        cells = [f"{1e6 * value:.2f}" for value in (one, other, abs(one - other), max(halves))]
        return f"| {' | '.join([self.name, f'{len(self.one):,}', *cells])} |"


def verifier(name: str, samples: int) -> RefusalTimes:
    """Time a verifier that is shown a signature with an early or a late letter changed."""
    check, headers, header = SIGNATURE_CASES[name]
    right = headers()
    signature = right[header]
    shown = [{**right, header: _changed(signature, place)} for place in CHANGED_POSITIONS[name]]
    taken: tuple[list[float], list[float]] = ([], [])
    for which in _random_order(2 * samples):
        begun = time.perf_counter()
        passed = check(shown[which], BODY)
        taken[which].append(time.perf_counter() - begun)
        assert not passed
    return RefusalTimes(name=f"{name}: early letter, late letter", one=taken[0], other=taken[1])


def _changed(text: str, place: int) -> str:
    letter = "1" if text[place] == "0" else "0"
    place %= len(text)
    return text[:place] + letter + text[place + 1 :]


def _random_order(count: int) -> Iterator[int]:
    """Yield 0 and 1 as often as each other, each pair in an order of chance."""
    chance = random.Random(1)
    for _ in range(count // 2):
        first = chance.randrange(2)
        yield first
        yield 1 - first


async def jobs(requests: int) -> RefusalTimes:
    """Time the job completion endpoint from many addresses: too many failures would lock one address."""
    with tempfile.TemporaryDirectory() as directory:
        async with gateway(Path(directory) / "data", env={"DOVECOTE_DRAIN_TIMEOUT": "0.2"}) as process:
            paths = [f"/sandbox-jobs/{job}/complete" for job in ("job_nobody", await _running_job(process))]
            taken: tuple[list[float], list[float]] = ([], [])
            for place in range(requests // FAILURES_PER_ADDRESS + 1):
                connector = aiohttp.TCPConnector(local_addr=(f"127.0.0.{2 + place}", 0))
                async with aiohttp.ClientSession(process.url, connector=connector) as session:
                    await _refused(session, paths[0])
                    for which in _random_order(FAILURES_PER_ADDRESS):
                        taken[which].append(await _refused(session, paths[which]))
    return RefusalTimes(name="a job's end: unknown job, wrong token", one=taken[0], other=taken[1])


async def _running_job(process: GatewayProcess) -> str:
    body = {"input": "!& sleep 600", "conversation": "timed"}
    async with process.http() as session:
        async with session.post("/agents/default/turns", json=body) as answer:
            assert answer.status == 202, await answer.text()
        async with asyncio.timeout(30):
            while True:
                async with session.get("/jobs") as answer:
                    items = (await answer.json())["items"]
                if items:
                    return str(items[0]["resultId"])
                await asyncio.sleep(0.05)


async def _refused(session: aiohttp.ClientSession, path: str) -> float:
    begun = time.perf_counter()
    shown = {"Authorization": f"Bearer {WRONG_TOKEN}"}
    async with session.post(path, json={"exit_code": 0, "output": ""}, headers=shown) as answer:
        await answer.read()
        assert answer.status == 401, answer.status
    return time.perf_counter() - begun


async def main(samples: int, requests: int) -> None:
    """Print one table."""
    print(
        "| refused for | samples each | one µs | other µs | difference | noise |\n|---|---|---|---|---|---|"
    )
    for name in sorted(SIGNATURE_CASES):
        print(verifier(name, samples).row(), flush=True)
    print((await jobs(requests)).row())
    print(f"\nMedians. Python {platform.python_version()}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=1200)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.samples, chosen.requests))
