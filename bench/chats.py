"""Delivery per chat: limits that are kept, replicas that fail, memory that does not grow.

    python -m bench.chats [--part limits replicas memory] [--small]

Three parts: ten chats with two hundred messages each on a platform with token buckets; two replicas, one of
them killed or frozen in the middle of two hundred deliveries, on each platform; ten thousand messages.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bench import chat_limits, chat_memory, chat_replicas
from bench.chat_replicas import FailoverPlan
from bench.meters import print_table
from gateway.observability.log_setup import set_up_logging

PARTS = ("limits", "replicas", "memory")
COUNTS = {"telegram": (25, 6000), "discord": (20, 4000), "slack": (25, 6000)}
"""Chats, and how far is counted in each: some two hundred messages in all."""


def limits(directory: Path, *, small: bool) -> None:
    """Send many messages to many chats of a platform that counts requests."""
    size = {"chats": 3, "messages": 40, "calm": 3} if small else {"chats": 10, "messages": 200, "calm": 10}
    found = asyncio.run(chat_limits.measure(directory, **size))
    title = ("chats × messages", "lost", "reordered", "429s", "most 429s in a chat's second")
    more = ("others' p95 ms, calm", "while one chat waits 2 s", "ratio", "the waiting text s")
    row = (f"{found.chats} × {found.messages}", found.lost, found.reordered, found.refused)
    times = (found.calm_p95, found.beside_p95, found.ratio, found.waited)
    print_table(title + more, [(*row, found.refused_in_a_window, *times)])


def replicas(directory: Path, *, small: bool) -> None:
    """Kill and freeze a replica on every platform."""
    title = (
        "platform",
        "a replica is",
        "deliveries",
        "lost",
        "reordered",
        "doubled",
        "in one chat",
        "not receiving s",
    )
    print_table(title, (_row(plan, directory) for plan in plans(small=small)))


def plans(*, small: bool) -> list[FailoverPlan]:
    """Return the plans to run."""
    return [
        FailoverPlan(
            platform=platform,  # type: ignore[arg-type]
            disturbance=disturbance,
            chats=3 if small else chats,
            last=2500 if small else last,
        )
        for platform, (chats, last) in COUNTS.items()
        for disturbance in ("kill", "freeze")
    ]


def _row(plan: FailoverPlan, directory: Path) -> tuple[Any, ...]:
    place = directory / f"{plan.platform}-{plan.disturbance}"
    place.mkdir()
    try:
        found = asyncio.run(chat_replicas.run(plan, place))
    except (TimeoutError, AssertionError, BaseExceptionGroup) as error:
        return (plan.platform, plan.disturbance, f"broken off: {error!r}", "", "", "", "", "")
    return (
        plan.platform,
        "killed" if plan.disturbance == "kill" else "frozen",
        found.deliveries,
        found.lost,
        found.reordered,
        found.doubled,
        found.doubled_in_one_chat,
        found.silent_seconds,
    )


def memory(directory: Path, *, small: bool) -> None:
    """Have many messages answered and measure the gateway's memory."""
    found = asyncio.run(chat_memory.measure(directory, messages=500 if small else 10_000))
    title = ("messages", "MB at the start", "at the most", "in the end", "grown")
    print_table(title, [(found.messages, found.start, found.most, found.end, found.grown)])


def main() -> None:
    """Run the chosen parts and print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--small", action="store_true", help="a hundredth of it, as the tests run it")
    given = parser.parse_args()
    set_up_logging(level="error")
    run = {"limits": limits, "replicas": replicas, "memory": memory}
    for part in given.part:
        with tempfile.TemporaryDirectory() as directory:
            run[part](Path(directory), small=given.small)
        print(flush=True)


if __name__ == "__main__":
    main()
