"""A run with several workers has all tests, and its workers get parts that take about equally long."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from run_order import SECONDS, SHORT, directory, shared_order

COUNTS = {
    "contracts": (200, 20),
    "faults": (40, 10),
    "journeys": (150, 10),
    "lint": (20, 10),
    "unit": (100, 30),
}
"""Files in a directory, and tests in each."""

WORKERS = 6


@dataclass(frozen=True, slots=True)
class ItemStub:
    """A test, as far as its order depends on it."""

    path: Path
    number: int


def sorted_tests() -> list[Any]:
    """Return tests in the order in which pytest collects them."""
    return [
        ItemStub(Path(f"/project/tests/{name}/test_{file}.py"), number)
        for name, (files, tests) in COUNTS.items()
        for file in range(files)
        for number in range(tests)
    ]


def estimated(tests: list[Any]) -> float:
    """Return the seconds that the tests are expected to take."""
    return sum(SECONDS[directory(test)] for test in tests)


def parts(tests: list[Any]) -> list[list[Any]]:
    """Return what pytest-xdist gives to each worker first."""
    found: list[list[Any]] = []
    while len(found) < WORKERS:
        size = len(tests) // (WORKERS - len(found))
        found.append(tests[:size])
        tests = tests[size:]
    return found


def test_all_tests_are_in_the_order_once() -> None:
    """No test is lost or repeated, and the long tests of a file stay together."""
    tests = sorted_tests()
    ordered = shared_order(tests, WORKERS)
    assert len(ordered) == len(tests)
    assert set(ordered) == set(tests)
    files = [path for path, _ in groupby(test.path for test in ordered if directory(test) not in SHORT)]
    assert len(files) == len(set(files))
    assert shared_order(tests, WORKERS) == ordered


def test_each_part_takes_about_equally_long() -> None:
    """Sorted by name, one part takes twice as long as another one; in this order, at most 20 % longer."""
    tests = sorted_tests()
    by_name = [estimated(part) for part in parts(tests)]
    ordered = [estimated(part) for part in parts(shared_order(tests, WORKERS))]
    assert max(by_name) > 2 * min(by_name)
    assert max(ordered) < 1.2 * min(ordered)


def test_each_part_ends_with_short_tests() -> None:
    """What is taken over from another worker at the end is short."""
    ordered = parts(shared_order(sorted_tests(), WORKERS))
    assert {directory(part[-1]) for part in ordered} <= SHORT
    assert not {directory(part[0]) for part in ordered} & SHORT


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_tests_are_ordered_too(count: int) -> None:
    """There may be fewer tests than workers."""
    tests = sorted_tests()[-count:] if count else []
    assert sorted(map(id, shared_order(tests, WORKERS))) == sorted(map(id, tests))
