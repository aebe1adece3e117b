"""Show the change of a file or a note as a unified diff (pure), in time proportional to it for any text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ChangedKind = Literal["file", "note"]
"""What a call changes, as the question about the call names it."""

CONTEXT_LINES = 3
MAX_COMPARISONS = 200_000
"""Steps of a comparison, enough for 600 changed lines; with more, the changed part is removed and added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChange:
    """The content of a file or note, which `what` names, before and after a call."""

    before: str
    after: str
    what: ChangedKind = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentText:
    """The file or note that a call would change, as the question about the call shows it.

    `state`: a hash of its content, or `missing`. `change` is None if no diff can be shown. `problem`: why it
    cannot be read, for example because its sandbox cannot be started; the state is unknown then.
    """

    state: str
    change: TextChange | None = None
    problem: str = ""
    what: ChangedKind = "file"


class _Entry(NamedTuple):
    """A line with its sign, and how many old and new lines stand before it."""

    sign: str
    line: str
    old: int
    new: int


def render_diff(change: TextChange) -> Iterator[str]:
    """Yield the lines of a unified diff; the text before and the diff together determine the text after.

    Only a line feed ends a line. A last line without one is followed by a mark.
    """
    entries = list(_entries(_lines(change.before), _lines(change.after)))
    shown: list[_Entry] = []
    for number in _near_changes(entries):
        if shown and entries[number - 1] is not shown[-1]:
            yield from _hunk(shown)
            shown = []
        shown.append(entries[number])
    if shown:
        yield from _hunk(shown)


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


def _entries(old: list[str], new: list[str]) -> Iterator[_Entry]:
    i = j = 0
    for sign, line in _signed(old, new):
        yield _Entry(sign, line, i, j)
        i, j = i + (sign != "+"), j + (sign != "-")


def _signed(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of both texts: those before and after the changed part are compared only once."""
    shorter = min(len(old), len(new))
    start = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - start
    end = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    yield from ((" ", line) for line in old[:start])
    yield from _compared(old[start : len(old) - end], new[start : len(new) - end])
    yield from ((" ", line) for line in old[len(old) - end :])


def _compared(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    i = j = 0
    for kept, other in [*_kept_lines(old, new), (len(old), len(new))]:
        yield from (("-", line) for line in old[i:kept])
        yield from (("+", line) for line in new[j:other])
        yield from ((" ", line) for line in old[kept : kept + 1])
        i, j = kept + 1, other + 1


def _kept_lines(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of the lines that a shortest diff keeps; none if it takes too many comparisons.

    Source: E. W. Myers, An O(ND) Difference Algorithm and Its Variations (1986), the greedy algorithm.
    """
    left = MAX_COMPARISONS
    # For each number of edits: how many old lines are used at most, on every second diagonal.
    reached: list[list[int]] = []
    for edits in range(len(old) + len(new) + 1):
        ends: list[int] = []
        for diagonal in range(-edits, edits + 1, 2):
            at = begun = _first_place(reached, edits, diagonal)
            while at < len(old) and at - diagonal < len(new) and old[at] == new[at - diagonal]:
                at += 1
            ends.append(at)
            left -= 1 + at - begun
            if at >= len(old) and at - diagonal >= len(new):
                return _walk_back([*reached, ends], len(old), len(new))
        reached.append(ends)
        if left < 0:
            break
    return []


def _first_place(reached: Sequence[Sequence[int]], edits: int, diagonal: int) -> int:
    """Return where a diagonal is entered by the last of some edits: from the one above, or the one below."""
    if edits == 0:
        return 0
    before, place = reached[edits - 1], (diagonal + edits) // 2
    from_below = before[place - 1] + 1 if place > 0 else -1
    return max(before[place], from_below) if place < edits else from_below


def _walk_back(reached: Sequence[Sequence[int]], i: int, j: int) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for edits in reversed(range(len(reached))):
        diagonal = i - j
        entered = _first_place(reached, edits, diagonal)
        while i > entered:
            i, j = i - 1, j - 1
            kept.append((i, j))
        if edits:
            before, place = reached[edits - 1], (diagonal + edits) // 2
            is_removal = place == edits or (place > 0 and before[place - 1] + 1 > before[place])
            i, j = (i - 1, j) if is_removal else (i, j - 1)
    return kept[::-1]


def _near_changes(entries: Sequence[_Entry]) -> list[int]:
    """Return the numbers of the changed lines and of those around them, in order."""
    found: list[int] = []
    for number, entry in enumerate(entries):
        if entry.sign != " ":
            first = max(number - CONTEXT_LINES, found[-1] + 1 if found else 0)
            found.extend(range(first, min(number + CONTEXT_LINES + 1, len(entries))))
    return found


def _hunk(entries: Sequence[_Entry]) -> Iterator[str]:
    removed = sum(entry.sign != "+" for entry in entries)
    added = sum(entry.sign != "-" for entry in entries)
    old, new = entries[0].old + bool(removed), entries[0].new + bool(added)
    yield f"@@ -{old},{removed} +{new},{added} @@"
    for entry in entries:
        yield from f"{entry.sign}{entry.line}".split("\n")
