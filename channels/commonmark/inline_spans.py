"""Find code, links and emphasis in a line of CommonMark, so that a cut keeps or continues them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_MARKS = 6
"""Most characters that `continue_spans` adds to a piece: a mark of three at both ends."""

_INLINE = re.compile(
    r"https?://[^\s<>]++|(?<!`)(`{1,3})(?!`)[^`]++\1(?!`)|\[[^\[\]]++\]\([^()]++\)|~~(?=\S)[^~]++~~|\*\*(?=\S)[^*]++\*\*"
    r"|(?<![\w*])\*(?=\S)[^*]++\*|(?<!\w)(__|_)(?=\S)[^_]++\2(?!\w)"
)
"""Addresses, code, links, emphasis. Each attempt ends at the next such sign, so all take linear time."""

_MARK = re.compile(r"`{1,3}|~~|\*\*?|__?")


@dataclass(frozen=True, slots=True)
class MarkedSpan:
    """Words between two equal marks; `begin` and `end` are those of the words."""

    begin: int
    end: int
    mark: str


def hide_spans(text: str) -> str:
    """Return a text of the same length in which code, links and emphasis have no spaces."""
    return _INLINE.sub(lambda found: "x" * len(found[0]), text)


def marked_spans(line: str) -> list[MarkedSpan]:
    """Return the code and the emphasis of a line, in order."""
    return [
        MarkedSpan(found.start() + len(mark[0]), found.end() - len(mark[0]), mark[0])
        for found in _INLINE.finditer(line)
        if (mark := _MARK.match(found[0]))
        and line[found.start() - 1 : found.start()] != "\\"
        and not line[found.end() - len(mark[0]) - 1].isspace()
    ]


def continue_spans(line: str, spans: list[MarkedSpan], pieces: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of a line; a span that is cut ends with one piece and begins again in the next."""
    begins = [span.begin for span in spans]
    position, opening = 0, ""
    for piece in pieces:
        position = line.index(piece, position) + len(piece)
        place = bisect_left(begins, position) - 1
        closing = spans[place].mark if place >= 0 and position < spans[place].end else ""
        words = piece.rstrip()
        yield f"{opening}{words}{closing}{piece[len(words) :]}" if words else piece
        opening = closing if words else opening
