"""Render CommonMark for Discord, whose own markdown is close enough to keep most of it.

Tables, which Discord lacks, become code blocks; headings below the third level become bold; images become
links. `||`, which would hide what is between two of them, is escaped. Code stays unchanged. The text is read
once, line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from channels.inbox.code import fenced_lines, map_prose

_SMALL_HEADING = re.compile(r"^ {0,3}#{4,6}[ \t]+(\S[^ \t\n]*+(?:[ \t]++(?!#*+[ \t]*+$)[^ \t\n]++)*)")
_DELIMITER = re.compile(r"^ {0,3}[|:-][-:| \t]*$")
_IMAGE = re.compile(r"!(\[[^\[\]\n]{0,200}\]\(https?://[^\s()<>]{1,1000}\))")
_SPECIAL = re.compile(r"([\\*_~`|>#\[\]()+\-<])")


def render(text: str) -> str:
    """Return the text with the few changes that Discord needs."""
    return "\n".join(_render_lines(list(fenced_lines(text))))


def escape(text: str) -> str:
    """Return the text so that Discord shows every character literally."""
    return _SPECIAL.sub(r"\\\1", text)


def _render_lines(lines: Sequence[tuple[str, bool]]) -> Iterator[str]:
    number = 0
    while number < len(lines):
        line, is_code = lines[number]
        rows = 0 if is_code else _count_table_rows(lines, number)
        if rows:
            yield from ("```", *(row for row, _ in lines[number : number + rows]), "```")
            number += rows
            continue
        yield line if is_code else _render_line(line)
        number += 1


def _count_table_rows(lines: Sequence[tuple[str, bool]], number: int) -> int:
    """Count the lines of the table that begins here: header, delimiter row, rows."""
    if number + 1 >= len(lines) or "|" not in lines[number][0]:
        return 0
    under = lines[number + 1][0]
    if "-" not in under or "|" not in under or not _DELIMITER.match(under):
        return 0
    end = number + 2
    while end < len(lines) and "|" in lines[end][0] and not lines[end][1]:
        end += 1
    holds_fence = any("```" in line for line, _ in lines[number:end])
    return 0 if holds_fence else end - number


def _render_line(line: str) -> str:
    heading = _SMALL_HEADING.match(line)
    if heading:
        return heading[1] if "*" in heading[1] else f"**{heading[1]}**"
    return map_prose(_IMAGE.sub(r"\1", line), lambda prose: prose.replace("||", r"\|\|"))
