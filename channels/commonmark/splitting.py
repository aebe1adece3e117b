"""Split CommonMark text into parts that each fit a platform's message, at block boundaries.

A block that is too long itself is cut inside: a list between its items, a table between its rows (the header
is repeated), a code fence between its lines (closed and reopened with its info string), a paragraph between
lines, otherwise between words (emphasis is closed and reopened), and a word between the characters that
people see. Only white space is lost.
Sizes are added up line by line, so `measure` must satisfy measure(a + b) == measure(a) + measure(b), and must
never be less than len.

Texts of up to `MAX_PARSED_LENGTH` characters are parsed as CommonMark. That costs about 10 µs a character on
hostile text and blocks the event loop, so longer texts are only scanned for fences and blank lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.commonmark.characters import between_characters
from channels.commonmark.inline_spans import MAX_MARKS, continue_spans, hide_spans, marked_spans

MIN_LIMIT = 16
"""The smallest limit accepted; a shorter part cannot hold a fence with a word in it."""

MAX_PARSED_LENGTH = 32_768

TABLE_FRAME = 8
"""The size of the code fence in which platforms without tables show one."""

_LEAVES = {"paragraph_open", "heading_open", "fence", "code_block", "hr", "table_open"}
_CODE = {"fence", "code_block"}
_OPENING = re.compile(r"(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t]){0,20}(`{3,}+(?=[^`]*$)|~{3,}+)(.*)")
_MARKER = re.compile(r"[ \t>]*(?:[-+*]|\d{1,9}[.)])(?:\s|$)")
_QUOTED = re.compile(r"[ ]{0,3}(?:>[ ]?){1,20}")
_STARTS_BLOCK = re.compile(r"#{1,6}(?:\s|$)|[-+*](?:\s|$)|[-_*=][-_*= \t]*+$|>|`{3,}+[^`]*+$|~{3}|\|")
_NUMBER = re.compile(r"(\d{1,9})([.)](?:\s|$))")


def split(text: str, limit: int, measure: Callable[[str], int] = len) -> tuple[str, ...]:
    """Return the parts of `text`, each of at most `limit` by `measure`; blank text has no parts.

    The result is deterministic and takes time proportional to the length of the text.
    """
    if limit < MIN_LIMIT:
        raise ValueError(f"a limit of {limit} is too small: at least {MIN_LIMIT} is needed")
    source = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    whole = _trim(source)
    if measure(whole) <= limit:
        return (whole,) if whole else ()
    packer = _Packer(limit, measure)
    lines = source.split("\n")
    for block in _blocks(source, lines) if len(source) <= MAX_PARSED_LENGTH else _scan(lines):
        packer.pack(block)
    packer.flush()
    return tuple(packer.parts)


def last_fence(lines: Sequence[str]) -> tuple[str, int]:
    """Return the mark and the first line of the code fence with which a text ends; "" if there is none."""
    source = "\n".join(lines)
    if len(source) > MAX_PARSED_LENGTH:
        *_, last = _scan(lines)
        return last.token.markup, len(lines) - len(last.lines)
    fences = (token for token in reversed(_parser().parse(source)) if token.type == "fence" and token.map)
    return next(
        ((token.markup, _first_line(token)) for token in fences if token.map and token.map[1] == len(lines)),
        ("", 0),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """A block or a leaf of one: its lines and first token; `leaves` are those of an outermost block."""

    token: Token
    lines: Sequence[str]
    leaves: tuple[_Span, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def body(self) -> int:
        """The number of lines that belong to the leaf; blank lines and bare markers may follow."""
        begin, end = self.token.map or [0, 0]
        return end - begin


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table").disable("reference")
    parser.core.ruler.disable(["inline", "text_join"])
    return parser


def _blocks(source: str, lines: Sequence[str]) -> Iterator[_Span]:
    """Yield the outermost blocks; together they contain every line of the source."""
    tokens = [token for token in _parser().parse(source) if token.map and token.nesting >= 0]
    tops = [index for index, token in enumerate(tokens) if token.level == 0 and token.type != "inline"]
    begin = 0
    for index, following in zip(tops, [*tops[1:], len(tokens)], strict=True):
        last = following == len(tokens)
        end = len(lines) if last else _first_line(tokens[following])
        leaves = [token for token in tokens[index:following] if token.type in _LEAVES]
        yield _Span(tokens[index], lines[begin:end], tuple(_leaves(leaves, lines, begin, end)))
        begin = end


def _leaves(tokens: Sequence[Token], lines: Sequence[str], begin: int, end: int) -> Iterator[_Span]:
    borders = [begin, *(_first_line(token) for token in tokens[1:]), end]
    for token, (first, after) in zip(tokens, pairwise(borders), strict=False):
        yield _Span(token, lines[first:after])


def _scan(lines: Sequence[str]) -> Iterator[_Span]:
    """Yield fences, and the runs between blank lines, without parsing."""
    begin = position = 0
    while position < len(lines):
        opening = _OPENING.fullmatch(lines[position])
        if opening:
            if begin < position:
                yield _Span(Token("paragraph_open", "p", 1), lines[begin:position])
            begin, position = position, _end_of_fence(lines, position, opening[1])
            yield _fence_span(lines[begin:position], opening)
            begin = position
        elif lines[position].strip():
            position += 1
        else:
            position += 1
            yield _Span(Token("paragraph_open", "p", 1), lines[begin:position])
            begin = position
    if begin < len(lines):
        yield _Span(Token("paragraph_open", "p", 1), lines[begin:])


def _end_of_fence(lines: Sequence[str], opening: int, mark: str) -> int:
    """Return the index after the line that closes a fence, or the number of lines."""
    inner = range(opening + 1, len(lines))
    return next((line + 1 for line in inner if closes(lines[line], mark)), len(lines))


def closes(line: str, mark: str) -> bool:
    """Return whether a line closes the fence that this mark has opened."""
    found = line.lstrip(" \t>").rstrip(" \t")
    return len(found) >= len(mark) and not found.strip(mark[0])


def _fence_span(lines: Sequence[str], opening: re.Match[str]) -> _Span:
    closed = len(lines) > 1 and lines[-1].strip(" \t>").startswith(opening[1])
    inner = lines[1:-1] if closed else lines[1:]
    token = Token("fence", "code", 0, map=[0, len(lines)], markup=opening[1], info=opening[2])
    token.content = _dedent(inner, _indent_of(lines[0])) + "\n"
    return _Span(token, lines)


def _first_line(token: Token) -> int:
    return token.map[0] if token.map else 0


def _trim(text: str) -> str:
    """Remove blank lines at both ends and spaces at the end; the first line keeps its indent."""
    return re.sub(r"\A(?:[ \t]*\n)+", "", text.rstrip())


class _Packer:
    """Fills parts up to the limit, one after the other."""

    def __init__(self, limit: int, measure: Callable[[str], int]) -> None:
        self.parts: list[str] = []
        self._limit = limit
        self._measure = measure
        self._newline = measure("\n")
        self._lines: list[str] = []
        self._size = 0

    @property
    def remaining(self) -> int:
        """The size that still fits into the current part, as one more line."""
        return self._limit - self._size

    def flush(self) -> None:
        """Close the current part."""
        part = _trim("\n".join(self._lines))
        if part:
            self.parts.append(part)
        self._lines.clear()
        self._size = 0

    def pack(self, block: _Span) -> None:
        """Add a whole block if it fits, else start a new part, else cut the block."""
        if self._fits(block.text) or self._is_small(block.text):
            self._add(block.text)
        elif any(leaf.token is not block.token for leaf in block.leaves):
            self._pack_leaves(block.leaves)
        else:
            self._break(block)

    def _fits(self, text: str) -> bool:
        return self._measure(text.rstrip()) <= self.remaining

    def _is_small(self, text: str) -> bool:
        """Return whether the text fits a part of its own, and start that part."""
        small = self._measure(text.rstrip()) <= self._limit
        if small:
            self.flush()
        return small

    def _add(self, text: str) -> None:
        self._lines.append(text)
        self._size += self._measure(text) + self._newline

    def _pack_leaves(self, leaves: Sequence[_Span]) -> None:
        """Pack a list or quote leaf by leaf; a part that begins inside it loses its first line's indent.

        There, a list item that does not follow another one needs a blank line before it, because most list
        markers do not end a paragraph.
        """
        indent, listed = 0, True
        for leaf in leaves:
            own = _indent_of(leaf.lines[0])
            indent = min(indent, own)  # an outer line keeps its continuation lines
            item = bool(_MARKER.match(leaf.lines[0]))
            text = ("\n" if item and not listed else "") + _dedent(leaf.lines, indent)
            if self._fits(text):
                self._add(text)
                listed = listed or item
                continue
            indent, listed = own, item
            if self._measure(_dedent(leaf.lines, own).rstrip()) <= self._limit:
                self.flush()
                self._add(_dedent(leaf.lines, own))
            else:
                self._break(_Span(leaf.token, _dedent(leaf.lines, own).split("\n")))
                listed = False

    def _break(self, leaf: _Span) -> None:
        if leaf.token.type in _CODE:
            self._break_code(leaf)
        elif leaf.token.type == "table_open":
            self._break_lines(leaf.lines, head="\n".join(leaf.lines[:2]), frame=TABLE_FRAME)
        else:
            self._break_lines(leaf.lines)

    def _break_code(self, leaf: _Span) -> None:
        """Cut code between its lines; every part closes the fence and reopens it."""
        opening, closing = _fence_of(leaf.token)
        frame = self._measure(opening) + self._measure(closing) + 2 * self._newline
        if frame + MIN_LIMIT // 2 > self._limit:
            self._break_lines(leaf.lines)
            return
        marker = _marker_before(leaf)
        if marker:
            self._break_lines([marker])
        if self.remaining < frame + self._limit // 4:
            self.flush()
        self._pack_code(leaf.token.content.removesuffix("\n").split("\n"), opening, closing, frame)
        if leaf.token.type == "fence" and leaf.body < len(leaf.lines):
            self._break_lines(leaf.lines[leaf.body :])

    def _pack_code(self, lines: Sequence[str], opening: str, closing: str, frame: int) -> None:
        pending: list[str] = []
        size = frame
        for line in self._pieces(lines, self._limit - frame):
            more = self._measure(line) + self._newline
            if pending and size + more - self._newline > self.remaining:
                self._add("\n".join([opening, *pending, closing]))
                self.flush()
                pending, size = [], frame
            elif not pending and size + more - self._newline > self.remaining:
                self.flush()
            pending.append(line)
            size += more
        self._add("\n".join([opening, *pending, closing]))

    def _pieces(self, lines: Sequence[str], limit: int) -> Iterator[str]:
        for line in lines:
            yield from self._cut(line, limit, at_words=False)

    def _break_lines(self, lines: Sequence[str], *, head: str = "", frame: int = 0) -> None:
        """Cut between lines, and a line that is too long between words; `frame` is left free if it can be."""
        heading = head if head and self._measure(head) <= self._limit // 4 else ""
        for line in lines:
            if self._measure(line) <= self.remaining - (frame if self._lines else 0):
                self._add(line)
                continue
            self.flush()
            if heading and self._measure(line) + self._measure(heading) + self._newline <= self._limit:
                self._add(heading)
                self._add(line)
            else:
                self._break_line(line)

    def _break_line(self, line: str) -> None:
        quoted = _QUOTED.match(line)
        prefix = quoted.group() if quoted and self._measure(quoted.group()) <= self._limit // 4 else ""
        limit = self._limit - self._measure(prefix) - 1
        for number, piece in enumerate(self._cut_at_words(line[len(prefix) :], limit)):
            self.flush()
            self._add(prefix + (_escape_block_start(piece) if number else piece))

    def _cut_at_words(self, line: str, limit: int) -> Iterator[str]:
        """Yield pieces of a line that fit `limit`; emphasis that is cut is closed and opened again."""
        spans = marked_spans(line) if self._measure(line) > limit else []
        pieces = self._cut(line, limit - (MAX_MARKS if spans else 0), at_words=True)
        return continue_spans(line, spans, pieces)

    def _cut(self, line: str, limit: int, *, at_words: bool) -> Iterator[str]:
        """Yield pieces of a line that fit `limit`; a character wider than that is yielded alone."""
        if self._measure(line) <= limit:
            yield line
            return
        position = 0
        while position < len(line):
            window = line[position : position + limit]
            while len(window) > 1 and (excess := self._measure(window) - limit) > 0:
                window = window[: len(window) - max(1, excess // 4)]
            more = position + len(window) < len(line)
            space = _last_space(line, position, len(window)) if at_words and more else -1
            if space > 0:
                window = window[: space + 1]
            elif more:
                window = line[position : between_characters(line, position, position + len(window))]
            position += len(window)
            yield window.strip(" ") if at_words and position > len(window) else window


def _last_space(line: str, begin: int, size: int) -> int:
    """Return the last space of a window, outside of links, code and emphasis if one is; -1 if too early."""
    around = line[begin : begin + 2 * size]
    outside = hide_spans(around)[:size].rfind(" ")
    last = around[:size].rfind(" ")
    return outside if outside > size // 4 else last if last > size // 2 else -1


def _fence_of(token: Token) -> tuple[str, str]:
    """Return the opening and closing fence that can contain the code."""
    if token.type == "fence":
        return token.markup + token.info.rstrip(), token.markup
    longest = max((len(run) for run in re.findall(r"`+", token.content)), default=0)
    fence = "`" * max(3, longest + 1)
    return fence, fence


def _marker_before(leaf: _Span) -> str:
    """Return the list marker on the opening line of nested code; the indent would remove it."""
    code = leaf.token.markup or leaf.token.content.split("\n", 1)[0].strip()
    before, found, _ = leaf.lines[0].partition(code)
    return before.strip() if found else ""


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _dedent(lines: Sequence[str], width: int) -> str:
    return "\n".join(line[min(width, _indent_of(line)) :] for line in lines)


def _escape_block_start(piece: str) -> str:
    """Escape a piece of a paragraph that would start a new block."""
    piece = piece.lstrip()
    if _STARTS_BLOCK.match(piece):
        return "\\" + piece
    return _NUMBER.sub(r"\1\\\2", piece, count=1) if _NUMBER.match(piece) else piece
