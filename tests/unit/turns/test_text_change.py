"""Diffs of files: exact, whole, and quick for any text."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.conversations.text_change import TextChange, render_diff

UNFINISHED = "\\ No newline at end of file"
LINES = st.sampled_from(["", "a", "b", "c", "-a", "+a", " a", "@@ -1,1 +1,1 @@", UNFINISHED])
TEXTS = st.one_of(st.text(max_size=30), st.lists(LINES, max_size=30).map("\n".join))
HUNK = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@")


def split(text: str) -> list[tuple[str, bool]]:
    """Return the lines of a text, each with whether a line feed ends it."""
    *lines, rest = text.split("\n")
    return [*((line, True) for line in lines), *([(rest, False)] if rest else [])]


def patched(before: str, diff: list[str]) -> str:
    """Return the text after a diff, by the rules of unified diffs."""
    old = split(before)
    new: list[tuple[str, bool]] = []
    at = number = 0
    while number < len(diff):
        found = HUNK.fullmatch(diff[number])
        assert found is not None, diff[number]
        start, removed, _, added = map(int, found.groups())
        start -= bool(removed)
        new += old[at:start]
        at, number = start, number + 1
        while removed or added:
            sign, text = diff[number][0], diff[number][1:]
            number += 1
            unfinished = diff[number : number + 1] == [UNFINISHED]
            number += unfinished
            line = (text, not unfinished)
            if sign != "+":
                assert old[at] == line
                at, removed = at + 1, removed - 1
            if sign != "-":
                new.append(line)
                added -= 1
    return "".join(f"{text}\n" if finished else text for text, finished in [*new, *old[at:]])


@given(TEXTS, TEXTS)
@example("", f"a\n{UNFINISHED}\n")
@example(f"a\n{UNFINISHED}", "a")
def test_the_diff_determines_the_text(before: str, after: str) -> None:
    """The text before and the diff are enough to make the text after."""
    diff = list(render_diff(TextChange(before=before, after=after)))
    assert patched(before, diff) == after
    assert bool(diff) == (before != after)


def test_changes_far_apart_are_hunks_of_their_own() -> None:
    """Three unchanged lines surround each change; changes that are near share a hunk."""
    before = "".join(f"{number}\n" for number in range(30))
    after = before.replace("\n5\n", "\nfive\n").replace("\n8\n", "\n").replace("\n25\n", "\n25\nmore\n")
    diff = list(render_diff(TextChange(before=before, after=after)))
    assert [line for line in diff if line.startswith("@@")] == ["@@ -3,10 +3,9 @@", "@@ -24,6 +23,7 @@"]
    assert [line for line in diff if line[0] in "+-"] == ["-5", "+five", "-8", "+more"]


def test_patch_accepts_the_diff(tmp_path: Path) -> None:
    """The standard program applies the diff."""
    before, after = "a\nb\nc\nd\ne\nf\ng\nh", "a\nB\nc\nd\ne\nf\ng\nh\ni\n"
    (tmp_path / "f").write_text(before)
    diff = "".join(f"{line}\n" for line in render_diff(TextChange(before=before, after=after)))
    try:
        subprocess.run(["patch", "f"], input=f"--- f\n+++ f\n{diff}", cwd=tmp_path, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("the program patch is not installed")
    assert (tmp_path / "f").read_text() == after


@pytest.mark.parametrize("piece", ["\n", "a\n", "a\nb\n", "a"])
def test_a_large_file_is_compared_line_by_line_only_in_small_parts(piece: str) -> None:
    """Files of repeated lines, where comparisons are slowest, end as one removal and one addition."""
    before = piece * (20_000 // len(piece))
    diff = list(render_diff(TextChange(before=f"x\n{before}", after=f"{before}\ny\n")))
    assert patched(f"x\n{before}", diff) == f"{before}\ny\n"


@given(st.lists(LINES, max_size=12), st.lists(LINES, max_size=12))
def test_the_diff_is_a_shortest_one(before: list[str], after: list[str]) -> None:
    """No other diff keeps more lines."""
    old, new = "".join(f"{line}\n" for line in before), "".join(f"{line}\n" for line in after)
    changed = [line for line in render_diff(TextChange(before=old, after=new)) if line[0] in "+-"]
    assert len(changed) == len(before) + len(after) - 2 * longest_common(tuple(before), tuple(after))


@cache
def longest_common(old: tuple[str, ...], new: tuple[str, ...]) -> int:
    """Return the length of the longest common subsequence, by its definition."""
    if not old or not new:
        return 0
    if old[0] == new[0]:
        return 1 + longest_common(old[1:], new[1:])
    return max(longest_common(old[1:], new), longest_common(old, new[1:]))


@pytest.mark.parametrize("kinds", [2, 50, 110, 5000])
def test_files_without_a_common_order_are_replaced(kinds: int) -> None:
    """Two shuffled files of half a megabyte took the standard library minutes."""
    shuffled = Random(kinds)
    old, new = ("".join(f"{shuffled.randrange(kinds)}\n" for _ in range(20_000)) for _ in range(2))
    diff = list(render_diff(TextChange(before=old, after=new)))
    assert patched(old, diff) == new
