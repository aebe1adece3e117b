"""A set for what is remembered for a while only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from channels.receiving.bounded_dict import BoundedDict

T = TypeVar("T")


class ExpiringSet(Generic[T]):
    """A set of at most `most` members; each leaves it `seconds` after it was added last."""

    def __init__(self, most: int, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._until = BoundedDict[T, float](most)
        self._seconds = seconds
        self._clock = clock

    def add(self, member: T) -> None:
        """Add a member, or keep it for the whole time again."""
        self._until[member] = self._clock() + self._seconds

    def __contains__(self, member: T) -> bool:
        """Return whether a member was added and has not expired."""
        until = self._until.get(member)
        return until is not None and self._clock() < until
