"""Glob patterns without a sandbox: what they match, and how much work one may cause."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.environments.glob_pattern import MAX_PATTERN_CHARS, MAX_PATTERN_SEGMENTS, GlobPattern

NAMES = st.lists(st.sampled_from(["a", "b", "ab", ".c"]), min_size=1, max_size=5).map("/".join)
PATTERNS = st.lists(st.sampled_from(["**", "*", "a", "a*", "?", "[ab]", "[!a]"]), min_size=1, max_size=5).map(
    "/".join
)


def _defined_match(parts: list[str], pattern: list[str]) -> bool:
    """Match by definition, in exponential time."""
    if not pattern:
        return not parts
    if pattern == ["**"]:
        return bool(parts)
    if pattern[0] == "**":
        return any(_defined_match(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _defined_match(parts[1:], pattern[1:])


@given(paths=st.lists(NAMES, min_size=1, max_size=6), pattern=PATTERNS)
def test_a_pattern_matches_what_its_definition_says(paths: list[str], pattern: str) -> None:
    """The state machine agrees with the definition, for any order of paths."""
    glob = GlobPattern(pattern)
    for path in paths:
        assert glob.matches(path) == _defined_match(path.split("/"), pattern.split("/"))


@pytest.mark.parametrize(
    "pattern",
    [
        "/".join(["**"] * MAX_PATTERN_SEGMENTS),
        "/".join(["**", "a"] * (MAX_PATTERN_SEGMENTS // 2)),
        "/".join(["**", "*"] * (MAX_PATTERN_SEGMENTS // 2)),
        "/".join([*["**", "a*"] * (MAX_PATTERN_SEGMENTS // 2 - 1), "**", "nothing"]),
    ],
)
def test_an_adversarial_pattern_costs_at_most_depth_times_segments(pattern: str) -> None:
    """In a tree 200 deep no pattern compares more than once for each directory and pattern segment."""
    depth = 200
    glob = GlobPattern(pattern)
    for path in ("/".join(["a"] * levels) for levels in range(1, depth + 1)):
        glob.matches(path)
    assert glob.comparisons <= 2 * depth * MAX_PATTERN_SEGMENTS


def test_files_of_one_directory_share_the_work_for_it() -> None:
    """A file costs at most one comparison for each pattern segment, however deep its directory is."""
    glob = GlobPattern("/".join(["**", "a"] * (MAX_PATTERN_SEGMENTS // 2)))
    directory = "/".join(["a"] * 100)
    glob.matches(f"{directory}/first")
    before = glob.comparisons
    for number in range(50):
        glob.matches(f"{directory}/{number}")
    assert glob.comparisons - before <= 50 * MAX_PATTERN_SEGMENTS


@pytest.mark.parametrize("pattern", ["a" * (MAX_PATTERN_CHARS + 1), "*/" * MAX_PATTERN_SEGMENTS])
def test_a_pattern_that_is_too_long_is_refused(pattern: str) -> None:
    """The error names the limit."""
    with pytest.raises(ValueError, match="at most"):
        GlobPattern(pattern)
