"""Render CommonMark for GitHub, which shows it as it is, except for HTML and mentions.

`<` outside of code is escaped, because GitHub removes tags that it does not know. A mention would notify a
person, so a space of no width follows its `@`. The text is read once, line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from channels.github.threads import ESCAPES

_FENCE = re.compile(r"^[ >]*(`{3,}|~{3,})(.*)$")
_RUN = re.compile(r"`+")
_AUTOLINK = re.compile(r"<(?=https?://[^\s<>]{1,2000}>)")
_MENTION = re.compile(r"@(?=[A-Za-z0-9])")


def render(text: str) -> str:
    """Return the text with the few changes that GitHub needs."""
    lines, fence = [], ""
    for line in text.split("\n"):
        was, fence = fence, _fence_after(line, fence)
        lines.append(line if was or fence else _render_line(line))
    return "\n".join(lines)


def _fence_after(line: str, fence: str) -> str:
    """Return the marker of the fence that is open after this line, or ""."""
    found = _FENCE.match(line)
    if not found:
        return fence
    mark, rest = found[1], found[2]
    if fence:
        closes = mark[0] == fence[0] and len(mark) >= len(fence) and not rest.strip()
        return "" if closes else fence
    return "" if mark[0] == "`" and "`" in rest else mark


def _render_line(line: str) -> str:
    return "".join(part if is_code else _escape(part) for part, is_code in _parts(line))


def _parts(line: str) -> Iterator[tuple[str, bool]]:
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


def _escape(text: str) -> str:
    parts = _AUTOLINK.split(text)
    return "<".join(_MENTION.sub(ESCAPES["@"], part.replace("<", ESCAPES["<"])) for part in parts)
