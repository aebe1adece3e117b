"""Read CPU seconds and memory of a process tree, compute percentiles, and print tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """CPU seconds and resident megabytes of one process and everything below it."""

    cpu: float
    megabytes: float
    ended: float
    """The CPU seconds of the processes below it that have ended; `cpu` has them too."""


def read(pid: int) -> Reading:
    """Read a process and its descendants; children that ended count with their parents' CPU."""
    tree = [pid, *_below(pid)]
    ended = sum(_times(one)[2] + _times(one)[3] for one in tree)
    return Reading(
        cpu=(sum(_times(one)[0] + _times(one)[1] for one in tree) + ended) / _TICKS,
        megabytes=sum(_resident(one) for one in tree) / 1024,
        ended=ended / _TICKS,
    )


def alone(pid: int) -> float:
    """Return the CPU seconds of one process, without its children."""
    return sum(_times(pid)[:2]) / _TICKS


def resident(pid: int) -> float:
    """Return the resident megabytes of one process alone."""
    return _resident(pid) / 1024


def _below(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    except OSError:
        return found
    return found


def _times(pid: int) -> list[int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [0, 0, 0, 0]
    return [int(field) for field in fields[11:15]]


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile of many values."""
    if len(values) < 2:
        return next(iter(values), 0.0)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def print_table(title: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"| {' | '.join(title)} |")
    print(f"|{'---|' * len(title)}")
    for row in rows:
        print(f"| {' | '.join(_cell(value) for value in row)} |", flush=True)


def _cell(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
