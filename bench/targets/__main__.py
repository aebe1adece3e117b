"""Print the table of performance targets beside the raw limit of the same run.

    python -m bench.targets [--only one-by-one chats ...] [--count 100] [--turns 1000]
        [--rows 1000000] [--rounds 5]

The raw limit (`bench.baseline`) does what durability costs at least: three commits, six acknowledged
publishes, one streamed model call, one call to Telegram. CPU by layer is sampled in the gateway's process.
Believe counts, CPU and ratios on a busy machine, and times only on an idle one.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bench.targets import context, messages, others
from bench.targets.report import TargetRow, print_layers, print_targets
from bench.targets.rows import measure_rows

PARTS = ("one-by-one", "chats", "growth", "rows", "kill", "start", "replay", "webhooks", "command", "context")


async def measure(given: Any) -> tuple[list[TargetRow], Mapping[str, Mapping[str, float]]]:
    """Measure the wanted parts, one after the other."""
    rows: list[TargetRow] = []
    layers: Mapping[str, Mapping[str, float]] = {}
    if "one-by-one" in given.only:
        rows, layers = await messages.measure_one_by_one(given.count)
    measurements: Mapping[str, Callable[[], Awaitable[list[TargetRow]]]] = {
        "chats": lambda: messages.measure_many_chats(given.messages),
        "growth": lambda: messages.measure_growth(given.turns, given.rounds),
        "rows": lambda: measure_rows(given.count, given.rows, given.rounds),
        "kill": others.measure_recovery,
        "start": lambda: others.measure_start(given.rounds),
        "replay": lambda: others.measure_replay(given.rounds),
        "webhooks": others.measure_webhooks,
        "command": lambda: others.measure_command(given.count),
        "context": context.measure_context,
    }
    for part, measurement in measurements.items():
        if part in given.only:
            rows += await measurement()
    return rows, layers


def main() -> None:
    """Read the arguments, measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--messages", type=int, default=5)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    rows, layers = asyncio.run(measure(parser.parse_args()))
    print_targets(rows)
    if layers:
        print_layers(layers)


if __name__ == "__main__":
    main()
