"""Find the code in a CommonMark text, which is read once, line by line; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FENCE = re.compile(r"^([ >]*)(`{3,}+|~{3,}+)(.*)$")
_RUN = re.compile(r"`+")


def fenced_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a text, and whether each belongs to a fenced block; a quote ends its own blocks."""
    fence = ""
    for line in text.split("\n"):
        if fence.startswith(">") and not is_quoted(line):
            fence = ""
        was, fence = fence, _fence_after(line, fence)
        yield line, bool(was or fence)


def map_prose(text: str, change: Callable[[str], str]) -> str:
    """Return a text whose parts outside of code are changed."""
    return "\n".join(
        line if is_code else "".join(part if is_span else change(part) for part, is_span in code_spans(line))
        for line, is_code in fenced_lines(text)
    )


def without_comments(prose: str) -> str:
    """Return a text without code and without its HTML comments; one that does not end stays."""
    kept, position = [], 0
    while (start := prose.find("<!--", position)) >= 0 and (end := prose.find("-->", start + 4)) >= 0:
        kept.append(prose[position:start])
        position = end + 3
    return " ".join([*kept, prose[position:]])


def is_quoted(line: str) -> bool:
    """Return whether a line is part of a quote."""
    return line.lstrip().startswith(">")


def _fence_after(line: str, fence: str) -> str:
    """Return the marker of the fence that is open after this line, with `>` before a quote's, or ""."""
    found = _FENCE.match(line)
    if not found:
        return fence
    quote, mark, rest = ">" if ">" in found[1] else "", found[2], found[3]
    if fence:
        is_marker = f"{quote}{mark}".startswith(fence) and not rest.strip()
        return "" if is_marker else fence
    return "" if mark[0] == "`" and "`" in rest else f"{quote}{mark}"


def code_spans(line: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a line, and whether each is a code span.

    A run of backticks without a later run of its length is text.
    """
    runs = [(found.start(), found.end()) for found in _RUN.finditer(line)]
    last = {end - start: index for index, (start, end) in enumerate(runs)}
    position, index = 0, 0
    while index < len(runs):
        start, end = runs[index]
        if last[end - start] <= index:
            index += 1
            continue
        closing = next(n for n in range(index + 1, len(runs)) if runs[n][1] - runs[n][0] == end - start)
        yield line[position:start], False
        position = runs[closing][1]
        yield line[start:position], True
        index = closing + 1
    yield line[position:], False
