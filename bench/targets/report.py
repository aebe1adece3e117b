"""Rows of the table of targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench import meters


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """One measured value, the raw limit of the same run (None: there is none), and the target.

    `more_is_better`: the target is a minimum.
    """

    name: str
    value: float
    target: float
    raw: float | None = None
    more_is_better: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the value reaches the target."""
        return self.value >= self.target if self.more_is_better else self.value <= self.target


def print_targets(rows: Iterable[TargetRow]) -> None:
    """Print the values beside the raw limit and the targets."""
    meters.print_table(
        ["", "gateway", "raw limit", "× raw", "target", "met"],
        [
            [
                row.name,
                row.value,
                "" if row.raw is None else row.raw,
                "" if not row.raw else row.value / row.raw,
                f"{'≥' if row.more_is_better else '≤'} {row.target:g}",
                "yes" if row.is_met else "no",
            ]
            for row in rows
        ],
    )


def print_layers(layers: Mapping[str, Mapping[str, float]]) -> None:
    """Print the CPU milliseconds of a message in each layer, a column for each run."""
    names = sorted(
        {name for run in layers.values() for name in run}, key=lambda name: -_largest(layers, name)
    )
    print()
    meters.print_table(
        ["CPU ms a message, in", *layers],
        [[name, *(run.get(name, 0.0) for run in layers.values())] for name in names],
    )


def _largest(layers: Mapping[str, Mapping[str, float]], name: str) -> float:
    return max(run.get(name, 0.0) for run in layers.values())
