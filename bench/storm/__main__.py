"""Send conflicting requests at two replicas and check that everything is answered (`python -m bench.storm`).

Clients of two accounts create, change, use and delete the same few records, conversations, turns and
deliveries at once, while people write in chats, a model calls tools at random, readers follow streams, and
further accounts come and are deleted. A fault is an answer with 5xx or none within 60 s, a logged error, a
deadlock, a missed event, an id of another account, a chat that is not answered afterwards, a queue that does
not become empty, or an exit code other than 0.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
from collections import Counter
from pathlib import Path

from bench.storm.plan import StormPlan, StormReport
from bench.storm.requests import OPERATIONS
from bench.storm.run import run

COLUMNS = (
    "replicas",
    "kills",
    "restarts",
    "NATS kills",
    "database restarts",
    "requests",
    "2xx",
    "4xx",
    "5xx or none",
    "frames",
    "missed",
    "foreign",
    "errors logged",
    "deadlocks",
    "not answered",
    "not at rest",
    "cut by an outage",
    "seed",
)
SHOWN = 20


def row(report: StormReport) -> tuple[object, ...]:
    """Return a report as a line of the table."""
    by_class: Counter[int] = Counter()
    for (_, status), times in report.statuses.items():
        by_class[status // 100] += times
    return (
        report.plan.replicas,
        report.plan.kills,
        report.plan.restarts,
        report.plan.nats_kills,
        report.plan.database_restarts,
        report.requests,
        by_class[2],
        by_class[4],
        len(report.errors) + len(report.late),
        report.frames,
        len(report.missed),
        len(report.foreign),
        len(report.logged),
        report.deadlocks,
        len(report.unanswered),
        len(report.waiting),
        report.cut,
        report.plan.seed,
    )


def parse_plan(arguments: list[str] | None = None) -> tuple[StormPlan, bool, Path | None]:
    """Read the command line: the plan, whether to list the answers by route, and where the logs stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--chats", type=int, default=4)
    parser.add_argument("--readers", type=int, default=6, help="WebSockets that follow conversations")
    parser.add_argument("--visitors", type=int, default=2, help="accounts at once that come and are deleted")
    parser.add_argument("--kills", type=int, default=0, help="kill -9 of a replica during the storm")
    parser.add_argument("--restarts", type=int, default=0, help="SIGTERM of a replica, and its start")
    parser.add_argument("--database-restarts", type=int, default=0, help="crashes of PostgreSQL")
    parser.add_argument("--nats-kills", type=int, default=0, help="kill -9 of the broker during the storm")
    parser.add_argument("--replicas", type=int, choices=(1, 2), default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=list(OPERATIONS), default=list(OPERATIONS))
    parser.add_argument("--routes", action="store_true", help="list the answers by route")
    parser.add_argument("--keep", type=Path, help="keep the data, the logs and a dump of PostgreSQL here")
    given = vars(parser.parse_args(arguments))
    routes, keep = given.pop("routes"), given.pop("keep")
    return StormPlan(**given), routes, keep


def main() -> int:
    """Run the storm; returns 0 if there was no fault."""
    plan, routes, keep = parse_plan()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the model cuts connections on purpose
    with tempfile.TemporaryDirectory() as directory:
        report = asyncio.run(run(plan, keep or Path(directory)))
    if routes:
        for (route, status), times in sorted(report.statuses.items()):
            print(f"{times:6} {status} {route}")
    for fault in report.faults[:SHOWN]:
        print(fault[:1000])
    for queue, length in report.waiting.items():
        print(f"{queue}: {length:.0f}")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    print("| " + " | ".join(str(cell) for cell in row(report)) + " |")
    return 0 if report.is_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
