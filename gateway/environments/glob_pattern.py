"""Glob patterns with `**`, matched in time proportional to path length times pattern length."""

from __future__ import annotations

import re
from fnmatch import translate

MAX_PATTERN_CHARS = 512
MAX_PATTERN_SEGMENTS = 32

_ANY_DEPTH = "**"


class GlobPattern:
    """Matches relative paths as bash does with globstar: `**` is any number of directories.

    The pattern is a state machine whose states are positions in it. The states that a directory reaches
    are computed once and shared by everything below it, so one object serves one listing.
    Raises ValueError for a pattern that exceeds `MAX_PATTERN_CHARS` or `MAX_PATTERN_SEGMENTS`.
    """

    def __init__(self, pattern: str) -> None:
        ensure_bounded(pattern)
        segments = pattern.split("/")
        self._segments = [
            None if segment == _ANY_DEPTH else re.compile(translate(segment))
            for at, segment in enumerate(segments)
            if segment != _ANY_DEPTH or segments[at - 1 : at] != [_ANY_DEPTH]
        ]
        self._directories: dict[str, frozenset[int]] = {"": self._skip_depths({0})}
        self.comparisons = 0
        """Comparisons of a path segment with a pattern segment so far."""

    def matches(self, path: str) -> bool:
        """Return whether the whole path matches."""
        directory, _, name = path.rpartition("/")
        return len(self._segments) in self._step(self._states_after(directory), name)

    def _states_after(self, directory: str) -> frozenset[int]:
        """Return the states that a directory reaches; those of its parents are computed first."""
        unknown = []
        while directory not in self._directories:
            unknown.append(directory)
            directory = directory.rpartition("/")[0]
        for deeper in reversed(unknown):
            states = self._step(self._directories[directory], deeper.rpartition("/")[2])
            self._directories[deeper] = states
            directory = deeper
        return self._directories[directory]

    def _step(self, states: frozenset[int], name: str) -> frozenset[int]:
        """Return the states that follow `states` after one path segment."""
        reached: set[int] = set()
        for state in states:
            if state == len(self._segments):
                continue
            self.comparisons += 1
            segment = self._segments[state]
            if segment is None:
                reached.add(state)
                if state == len(self._segments) - 1:
                    reached.add(state + 1)
            elif segment.match(name):
                reached.add(state + 1)
        return self._skip_depths(reached)

    def _skip_depths(self, states: set[int]) -> frozenset[int]:
        """Add the states after a `**` that stands for no directory; a last `**` needs a name."""
        last = len(self._segments) - 1
        return frozenset(states | {at + 1 for at in states if at < last and self._segments[at] is None})


def ensure_bounded(pattern: str) -> None:
    """Raise ValueError for a pattern that is too long or has too many segments."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed")
    segments = pattern.count("/") + 1
    if segments > MAX_PATTERN_SEGMENTS:
        raise ValueError(f"pattern has {segments} segments; at most {MAX_PATTERN_SEGMENTS} are allowed")
