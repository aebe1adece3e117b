"""Show the change of a file or a note as a unified diff (pure), in time proportional to it for any text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

ChangedKind = Literal["file", "note"]
"""What a call changes, as the question about the call names it."""

CONTEXT_LINES = 3
MAX_COMPARED_LINES = 120
"""Lines on either side that are compared one by one; more of them are shown as one removal and addition."""


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
    opcodes: Iterable[tuple[str, int, int, int, int]] = [("replace", 0, len(old), 0, len(new))]
    if max(len(old), len(new)) <= MAX_COMPARED_LINES:
        opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for tag, i, i_end, j, j_end in opcodes:
        if tag == "equal":
            yield from ((" ", line) for line in old[i:i_end])
        else:
            yield from (("-", line) for line in old[i:i_end])
            yield from (("+", line) for line in new[j:j_end])


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
