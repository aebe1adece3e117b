"""Compare a sandboxed command with bubblewrap alone, side by side in one run.

    python -m bench.sandbox_exec [--count 200] [--at-once 4]

Each row is `bash -c true`: as a bare process, in the smallest useful bubblewrap, and through the host
provider. The provider adds the read-only /etc, scratch file systems, limits and control groups, output pipes,
and the guarantee that no process is left. A reserved sandbox prewarms its next namespaces while it is idle.
The rows alternate, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from sandbox.host.isolation import bubblewrap
from sandbox.host.settings import HostSettings
from sandbox.model import ExecRequest, SandboxSpec
from sandbox.port import CallbackDirectories, ProviderContext, Sandbox
from sandbox.registry import plugin

SHELL = ("/bin/bash", "-c", "true")
BUBBLEWRAP_OPTIONS = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
)
TimedCall = Callable[[], Awaitable[None]]


def subprocess_call(*argv: str) -> TimedCall:
    """Return a way that runs a process by asyncio."""

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(*argv, env={})
        if await process.wait() != 0:
            raise RuntimeError(f"{argv[0]} failed")

    return run


def provider_call(sandbox: Sandbox) -> TimedCall:
    """Return a way that runs a command through the provider."""

    async def run() -> None:
        if not (await sandbox.run(ExecRequest(script="true"))).ok:
            raise RuntimeError("the sandboxed command failed")

    return run


async def measure(calls: dict[str, TimedCall], count: int) -> dict[str, list[float]]:
    """Return milliseconds of each way, one after the other in turn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(count):
        for name, way in calls.items():
            started = time.perf_counter()
            await way()
            taken[name].append((time.perf_counter() - started) * 1000)
    return taken


async def rate(call: TimedCall, count: int, at_once: int) -> float:
    """Return runs a second with so many at once."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await call()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return count / (time.perf_counter() - started)


def table(taken: dict[str, list[float]], rates: dict[str, float], raw: str) -> str:
    """Return the measurements as a Markdown table."""
    lines = ["| way | p50 ms | p99 ms | ratio to bwrap | runs/s |", "|---|---|---|---|---|"]
    for name, values in taken.items():
        high = quantiles(values, n=100)[98]
        ratio = median(values) / median(taken[raw])
        lines.append(f"| {name} | {median(values):.1f} | {high:.1f} | {ratio:.2f} | {rates[name]:.0f} |")
    return "\n".join(lines)


async def main(count: int, at_once: int) -> None:
    """Measure and print the table."""
    binary = str(bubblewrap.find() or shutil.which("bwrap") or "bwrap")
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        context = ProviderContext(
            state=here / "state", callbacks=CallbackDirectories(root=here / "callbacks")
        )
        async with plugin("host").open(HostSettings(), context) as provider:
            spec = SandboxSpec(label="bench", namespace="bench", workspace=here / "workspace")
            reserved = replace(spec, label="reserved", workspace=None, persistent=True)
            ways = {
                "bash alone": subprocess_call(*SHELL),
                "bwrap": subprocess_call(binary, *BUBBLEWRAP_OPTIONS, *SHELL),
                "host provider": provider_call(await provider.create(spec)),
                "host provider, reserved": provider_call(await provider.create(reserved)),
            }
            taken = await measure(ways, count)
            rates = {way: await rate(run, count, at_once) for way, run in ways.items()}
    print(table(taken, rates, "bwrap"))
    print(
        f"\n{binary}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; wall time, so other load adds up"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.count, chosen.at_once))
