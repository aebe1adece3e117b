"""Measure a computation of one account while the sandboxes of another account use all processors.

    python -m bench.processors [--provider host | docker] [--sandboxes 8] [--samples 5]

The sandboxes have control groups. The limit is half of the processors: what the kernel gives each of two
accounts that want all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.model import ExecRequest
from sandbox.port import Provider, Sandbox
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import variants_of

COMPUTATION = "python3 -c 'sum(i * i for i in range(10_000_000))'"
LOOP = "while :; do :; done"
SECONDS = 300.0
RIGS = {"host": "control_groups", "docker": "engine"}


async def time_computation(sandbox: Sandbox) -> float:
    """Return the seconds that the computation takes."""
    begun = time.perf_counter()
    result = await sandbox.run(ExecRequest(script=COMPUTATION, timeout=SECONDS))
    assert result.ok, result.stderr
    return time.perf_counter() - begun


@asynccontextmanager
async def looping_sandboxes(
    provider: Provider, rig: ProviderRig, account: str, count: int
) -> AsyncIterator[None]:
    """Run endless loops in so many sandboxes of an account during the block."""
    loops = []
    for number in range(count):
        spec = rig.spec(label=f"{rig.label}-{account}-{number}", account=account, cpus=os.cpu_count())
        sandbox = await provider.create(spec)
        loops.append(asyncio.create_task(sandbox.run(ExecRequest(script=LOOP, timeout=SECONDS))))
    try:
        yield
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def measure(provider_name: str, sandboxes: int, samples: int) -> list[str]:
    """Return the lines of the table: the computation alone, beside another account, and beside its own."""
    with tempfile.TemporaryDirectory() as directory:
        rig = variants_of(provider_name)[RIGS[provider_name]](Path(directory))
        async with rig.open() as provider:
            quiet = await provider.create(rig.spec(account="quiet", cpus=os.cpu_count()))
            await time_computation(quiet)
            alone = statistics.median([await time_computation(quiet) for _ in range(samples)])
            lines = [f"| alone | {alone:.2f} | 1.0 |"]
            for account, name in (("busy", "another account"), ("quiet", "the same account")):
                async with looping_sandboxes(provider, rig, account, sandboxes):
                    taken = statistics.median([await time_computation(quiet) for _ in range(samples)])
                lines.append(
                    f"| beside {sandboxes} sandboxes of {name} | {taken:.2f} | {taken / alone:.1f} |"
                )
            for sandbox_id, _ in await provider.list(rig.label):
                await provider.destroy(sandbox_id)
    return lines


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", choices=RIGS, default="host")
    parser.add_argument("--sandboxes", type=int, default=8)
    parser.add_argument("--samples", type=int, default=5)
    given = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
    print("| computation | seconds | ÷ alone |")
    print("|---|---|---|")
    print("\n".join(asyncio.run(measure(given.provider, given.sandboxes, given.samples))))


if __name__ == "__main__":
    main()
