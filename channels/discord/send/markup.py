"""Render CommonMark for Discord, whose own markdown is close enough to keep most of it.

Tables, which Discord lacks, become code blocks; headings below the third level become bold; images become
links. Code fences stay unchanged. The text is read once, line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_SMALL_HEADING = re.compile(r"^ {0,3}#{4,6}[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*$")
_DELIMITER = re.compile(r"^ {0,3}[|:-][-:| \t]*$")
_IMAGE = re.compile(r"!(\[[^\[\]\n]{0,200}\]\(https?://[^\s()<>]{1,1000}\))")
_SPECIAL = re.compile(r"([\\*_~`|>#\[\]()+\-<])")


def render(text: str) -> str:
    """Return the text with the few changes that Discord needs."""
    return "\n".join(_render_lines(text.split("\n")))


def escape(text: str) -> str:
    """Return the text so that Discord shows every character literally."""
    return _SPECIAL.sub(r"\\\1", text)


def _render_lines(lines: Sequence[str]) -> Iterator[str]:
    fence = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        rows = 0 if fence else _table_rows(lines, number)
        if rows:
            yield from ("```", *lines[number : number + rows], "```")
            number += rows
            continue
        was, fence = fence, _fence_after(line, fence)
        yield line if was or fence else _render_line(line)
        number += 1


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


def _table_rows(lines: Sequence[str], number: int) -> int:
    """Count the lines of the table that begins here: header, delimiter row, rows."""
    if number + 1 >= len(lines) or "|" not in lines[number]:
        return 0
    under = lines[number + 1]
    if "-" not in under or "|" not in under or not _DELIMITER.match(under):
        return 0
    end = number + 2
    while end < len(lines) and "|" in lines[end] and not _FENCE.match(lines[end]):
        end += 1
    holds_fence = any("```" in line for line in lines[number:end])
    return 0 if holds_fence else end - number


def _render_line(line: str) -> str:
    heading = _SMALL_HEADING.match(line)
    if heading:
        return heading[1] if "*" in heading[1] else f"**{heading[1]}**"
    return _IMAGE.sub(r"\1", line)
