"""The order of the tests in a run with several workers, in which no worker ends long before the others.

pytest-xdist gives each worker an equal share of the list, one after the other, and a worker that has ended
takes over half of what another one has left. Sorted by name, the long tests, which mostly wait, are
neighbours: one worker gets them, and they run last. Here every share begins with some of them, among tests
that compute, and ends with short tests, which are quickly shared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import pytest

SECONDS = {"faults": 2.0, "journeys": 0.8, "contracts": 0.35, "unit": 0.04, "lint": 0.2}
"""About how long one test of a directory takes."""

SHORT = {"unit", "lint"}
"""The directories with short tests."""

OTHER = 0.1
"""Seconds of a test in another directory."""


@dataclass(slots=True)
class Share:
    """What one worker begins with."""

    tests: list[pytest.Item] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, tests: Sequence[pytest.Item]) -> None:
        """Append tests."""
        self.tests += tests
        self.seconds += sum(SECONDS.get(directory(test), OTHER) for test in tests)


def directory(test: pytest.Item) -> str:
    """Return the name of the directory in `tests` that holds a test, or an empty string."""
    parts = test.path.parts
    return parts[parts.index("tests") + 1] if "tests" in parts[:-2] else ""


def by_file(tests: Iterable[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the tests of each file, in a shuffled order of the files that is always the same."""
    files = [list(group) for _, group in itertools.groupby(tests, key=lambda test: test.path)]
    return sorted(files, key=lambda group: crc32(Path(*group[0].path.parts[-3:]).as_posix().encode()))


def shared_order(tests: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests in an order whose equal parts take about equally long."""
    shares = [Share() for _ in range(workers)]
    for group in by_file(test for test in tests if directory(test) not in SHORT):
        min(shares, key=lambda share: share.seconds).add(group)
    short = [test for group in by_file(test for test in tests if directory(test) in SHORT) for test in group]
    left = len(tests)
    for number, share in enumerate(shares):
        size = left // (workers - number)  # as pytest-xdist divides them
        taken = max(0, size - len(share.tests))
        share.add(short[:taken])
        short, left = short[taken:], left - size
    shares[-1].add(short)
    return [test for share in shares for test in share.tests]
