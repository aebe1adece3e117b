"""Render Markdown for a terminal: styles without colours, and every word of the text.

Only the styles below leave this module as escape sequences; text passes through `clean` first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from wcwidth import width as width_of
from wcwidth import wrap

from channels.commonmark.markup import (
    Block,
    CodeSpan,
    Fence,
    Heading,
    Inline,
    InlineImage,
    Link,
    ListBlock,
    Paragraph,
    Quote,
    StyledText,
    Table,
    Text,
    ThematicBreak,
    parse,
)
from gateway.cli.printable import clean

_STYLES = {
    "strong": ("\x1b[1m", "\x1b[22m"),
    "emphasis": ("\x1b[3m", "\x1b[23m"),
    "strike": ("\x1b[9m", "\x1b[29m"),
    "code": ("\x1b[7m", "\x1b[27m"),
    "heading": ("\x1b[1;4m", "\x1b[22;24m"),
    "quiet": ("\x1b[2m", "\x1b[22m"),
}
"""Escape sequences that begin and end a style; they change no colour."""

_TASK = re.compile(r"\[([ xX])\] ")
_FENCE_LINE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CONTINUES_BLOCK = re.compile(r"[ \t>]|[-*+] |\d{1,9}[.)] ")
"""The start of a line that may continue a list or a quote after a blank line."""

_FEWEST_COLUMNS = 12
"""The least space in which words are wrapped; in less of it the terminal breaks the lines."""


def render_markdown(text: str, *, columns: int | None = None) -> str:
    """Return a text with its Markdown shown by styles and signs; it ends with a line end unless empty.

    With `columns` its prose is wrapped between words, but no code, no table and no word that is longer.
    """
    lines = _blocks(parse(clean(text)), columns)
    return "".join(f"{line}\n" for line in lines)


class MarkdownStream:
    """Renders a text that arrives in pieces, block by block as soon as a block is complete.

    `columns` returns the present width of the terminal.
    """

    def __init__(self, columns: Callable[[], int] | None = None) -> None:
        self._columns = columns
        self._lines: list[str] = []
        self._partial = ""
        self._fence = ""
        self._shown = False

    def feed(self, piece: str) -> str:
        """Add a piece of the text; returns the blocks that are complete."""
        *whole, self._partial = (self._partial + piece).split("\n")
        return "".join(map(self._add_line, whole))

    def flush(self) -> str:
        """Return the rest, and begin a new text."""
        if self._partial:
            self._lines.append(self._partial)
        rest = self._render()
        self._partial, self._fence, self._shown = "", "", False
        return rest

    def _add_line(self, line: str) -> str:
        is_start = bool(line.strip()) and not self._fence and _CONTINUES_BLOCK.match(line) is None
        after_blank = bool(self._lines) and not self._lines[-1].strip()
        complete = self._render() if is_start and after_blank else ""
        self._lines.append(line)
        self._follow_fence(line)
        return complete

    def _follow_fence(self, line: str) -> None:
        found = _FENCE_LINE.match(line)
        if found is None:
            return
        if not self._fence:
            self._fence = found[1]
        elif found[1].startswith(self._fence) and not line.strip().strip(self._fence[0]):
            self._fence = ""

    def _render(self) -> str:
        lines, self._lines = self._lines, []
        columns = self._columns() if self._columns is not None else None
        rendered = render_markdown("\n".join(lines), columns=columns)
        between = "\n" if rendered and self._shown else ""
        self._shown = self._shown or bool(rendered)
        return between + rendered


def _styled(style: str, text: str) -> str:
    begin, end = _STYLES[style]
    return f"{begin}{text}{end}" if text else ""


def _blocks(blocks: Sequence[Block], columns: int | None) -> list[str]:
    lines: list[str] = []
    for number, block in enumerate(blocks):
        if number and (block.gap or isinstance(block, Fence | Table | Heading)):
            lines.append("")
        lines.extend(_block(block, columns))
    return lines


def _block(block: Block, columns: int | None) -> list[str]:
    match block:
        case Heading():
            lines = [_styled("heading", line) for line in _prose(block.children, columns)]
        case Paragraph():
            lines = _prose(block.children, columns)
        case Fence():
            lines = [f"    {line}" for line in block.text.split("\n")]
        case Quote():
            lines = [f"│ {line}" for line in _blocks(block.children, _less(columns, 2))]
        case ListBlock():
            lines = _list(block, columns)
        case ThematicBreak():
            lines = ["─" * 20]
        case Table():
            lines = _table(block.text)
    return lines


def _prose(children: Iterable[Inline], columns: int | None) -> list[str]:
    lines = _inlines(children).split("\n")
    if columns is None or columns < _FEWEST_COLUMNS:
        return lines
    return [part for line in lines for part in _wrapped(line, columns)]


def _wrapped(line: str, columns: int) -> list[str]:
    if width_of(line) <= columns:
        return [line]
    return wrap(line, columns, break_long_words=False, break_on_hyphens=False)


def _less(columns: int | None, used: int) -> int | None:
    return None if columns is None else columns - used


def _list(block: ListBlock, columns: int | None) -> list[str]:
    lines: list[str] = []
    for number, item in enumerate(block.items):
        if number and block.loose:
            lines.append("")
        mark = "• " if block.start is None else f"{block.start + number}. "
        inner = _blocks(item, _less(columns, len(mark))) or [""]
        task = _TASK.match(inner[0])
        if task is not None:
            mark, inner[0] = ("☐ " if task[1] == " " else "☑ "), inner[0][task.end() :]
        lines.append(mark + inner[0])
        lines.extend(" " * len(mark) + line if line else "" for line in inner[1:])
    return lines


def _table(text: str) -> list[str]:
    """Return a table with columns of equal width; the second source line holds only marks."""
    head, _marks, *rows = [_cells(line) for line in text.split("\n")]
    columns = len(head)
    grid = [[*row, *[""] * columns][:columns] for row in (head, *rows)]
    widths = [max(width_of(row[column]) for row in grid) for column in range(columns)]
    lines = ["  ".join(map(_padded, row, widths)) for row in grid]
    return [_styled("strong", lines[0].rstrip()), *(line.rstrip() for line in lines[1:])]


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - width_of(cell))


def _cells(line: str) -> list[str]:
    inner = line.removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def _inlines(children: Iterable[Inline]) -> str:
    return "".join(map(_inline, children))


def _inline(inline: Inline) -> str:
    match inline:
        case Text():
            return inline.text
        case CodeSpan():
            return _styled("code", inline.text)
        case StyledText():
            return _styled(inline.style, _inlines(inline.children))
        case Link():
            label = _inlines(inline.children)
            return label if label == inline.url else f"{label} ({inline.url})"
        case InlineImage():
            return f"{inline.alt} ({inline.url})"
