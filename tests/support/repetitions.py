"""Repetitions of a test that need not run on every change.

The mark `exhaustive` leaves a test out of `.ci/gate`. `.ci/exhaustive` runs what is marked.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

V = TypeVar("V")


def in_gate(values: Iterable[V], chosen: Container[V]) -> list[V | ParameterSet]:
    """Return the values of a parameter; those that are not chosen are marked as exhaustive."""
    return [value if value in chosen else exhaustive(value) for value in values]


def exhaustive(*values: object) -> ParameterSet:
    """Return a value of a parameter, or one of each of several, that is marked as exhaustive."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)
