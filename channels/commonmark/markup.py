"""Parse model text (CommonMark) into platform-neutral blocks for the renderers.

markdown-it-py parses the text once with raw HTML off, so that `Vec<T>` and `a<b` stay text. Link reference
definitions are off as well: a definition would vanish from the text, and the reference might be in another
part of a split reply. Nesting is bounded; anything deeper is kept as literal text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.commonmark.bare_urls import keep_bare_urls
from channels.commonmark.splitting import closes, last_fence, split

__all__ = [
    "Block",
    "CodeSpan",
    "Fence",
    "Heading",
    "Inline",
    "InlineImage",
    "Link",
    "ListBlock",
    "Paragraph",
    "Quote",
    "StyledText",
    "Table",
    "Text",
    "ThematicBreak",
    "close_fence",
    "parse",
    "split",
]

MAX_NESTING = 20
"""Maximum nesting, in markdown-it's levels (a list item takes two)."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text; a line break is a newline."""

    text: str


@dataclass(frozen=True, slots=True)
class CodeSpan:
    """A code span."""

    text: str


@dataclass(frozen=True, slots=True)
class StyledText:
    """Inline content with a style."""

    style: Literal["strong", "emphasis", "strike"]
    children: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """Inline content with a URL; the text of an autolink is its URL."""

    url: str
    children: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class InlineImage:
    """An image by URL, with its alternative text."""

    url: str
    alt: str


Inline = Text | CodeSpan | StyledText | Link | InlineImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Inline content. In every block, `gap` means that a blank line precedes it in the source."""

    children: tuple[Inline, ...]
    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A heading of level 1 to 6."""

    level: int
    children: tuple[Inline, ...]
    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Code, fenced or indented; `info` is everything after the opening fence."""

    text: str
    info: str = ""
    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Quoted blocks."""

    children: tuple[Block, ...]
    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBlock:
    """A list; `start` is the first number of an ordered list, None for bullets."""

    items: tuple[tuple[Block, ...], ...]
    start: int | None = None
    loose: bool = False
    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ThematicBreak:
    """A horizontal rule."""

    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, as its source lines, which chat platforms show best."""

    text: str
    gap: bool = False


Block = Paragraph | Heading | Fence | Quote | ListBlock | ThematicBreak | Table

_MARKUP = frozenset("\\`*_~[]<&\0\t\n\v\f\r")
"""Characters that begin something inside a line, or end it."""

_STYLES: dict[str, Literal["strong", "emphasis", "strike"]] = {
    "strong": "strong",
    "em": "emphasis",
    "s": "strike",
}


def parse(text: str) -> tuple[Block, ...]:
    """Return the blocks of `text`, with every word of it, in time proportional to its length."""
    if _is_plain(text):
        return (Paragraph(children=(Text(text),)),)
    tokens = _parser().parse(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd").split("\n")
    return tuple(_block(group, lines) for group in _outermost_blocks(tokens))


def close_fence(text: str) -> str:
    """Return a text whose last code block is closed, so that what follows the text is no code."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip().split("\n")
    mark, first = last_fence(lines)
    if not mark or (first < len(lines) - 1 and closes(lines[-1], mark)):
        return text
    before = lines[first].partition(mark)[0]
    indent = "".join(one if one in "> \t" else " " for one in before)
    return "\n".join([*lines, f"{indent}{mark}"])


def _is_plain(text: str) -> bool:
    """Return whether a text is one line without markup, as many short answers are: it needs no parser.

    A line that begins with a letter is a paragraph, whatever follows.
    """
    return text[:1].isalpha() and not text[-1].isspace() and _MARKUP.isdisjoint(text)


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING})
    return keep_bare_urls(parser.enable(["table", "strikethrough"]).disable("reference"))


def _outermost_blocks(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the token runs of the outermost blocks."""
    depth = start = 0
    for index, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield tokens[start : index + 1]
            start = index + 1


def _block(tokens: Sequence[Token], lines: Sequence[str]) -> Block:
    first = tokens[0]
    if any(token.level >= MAX_NESTING - 2 for token in tokens):
        return _literal(first, lines)
    gap = _gap(first, lines)
    match first.type:
        case "fence" | "code_block":
            return Fence(text=first.content.removesuffix("\n"), info=first.info.strip(), gap=gap)
        case "hr":
            return ThematicBreak(gap=gap)
        case "heading_open":
            return Heading(level=int(first.tag[1:]), children=_inlines(tokens[1]), gap=gap)
        case "paragraph_open":
            return Paragraph(children=_inlines(tokens[1]), gap=gap)
        case _:
            return _container(tokens, lines, gap=gap)


def _container(tokens: Sequence[Token], lines: Sequence[str], *, gap: bool) -> Block:
    first, inner = tokens[0], tokens[1:-1]
    if first.type == "blockquote_open":
        return Quote(children=tuple(_block(group, lines) for group in _outermost_blocks(inner)), gap=gap)
    if first.type in {"bullet_list_open", "ordered_list_open"}:
        items = [
            tuple(_block(group, lines) for group in _outermost_blocks(item[1:-1]))
            for item in _outermost_blocks(inner)
        ]
        start = int(first.attrs.get("start", 1)) if first.type == "ordered_list_open" else None
        return ListBlock(items=tuple(items), start=start, loose=_is_loose(inner), gap=gap)
    begin, end = first.map or [0, 0]
    return Table(text="\n".join(line.strip() for line in lines[begin:end]), gap=gap)


def _literal(first: Token, lines: Sequence[str]) -> Paragraph:
    begin, end = first.map or [0, 0]
    return Paragraph(children=(Text("\n".join(lines[begin:end]).strip("\n")),), gap=_gap(first, lines))


def _gap(token: Token, lines: Sequence[str]) -> bool:
    line = token.map[0] if token.map else 0
    return line > 0 and not lines[line - 1].strip(" \t>")


def _is_loose(inner: Sequence[Token]) -> bool:
    """Return whether a list's paragraphs are shown; markdown-it hides those of a tight list."""
    return any(
        token.type == "paragraph_open" and token.level == inner[0].level + 1 and not token.hidden
        for token in inner
    )


def _inlines(token: Token) -> tuple[Inline, ...]:
    return _nest(iter(token.children or ()))


def _nest(tokens: Iterator[Token]) -> tuple[Inline, ...]:
    """Consume inline tokens up to the closing one of the current style or link, or to the end."""
    inlines: list[Inline] = []
    for token in tokens:
        if token.nesting < 0:
            break
        if token.type == "link_open":
            inlines.append(Link(str(token.attrs.get("href", "")), _nest(tokens)))
        elif token.nesting > 0:
            inlines.append(StyledText(_STYLES[token.tag], _nest(tokens)))
        else:
            inlines.append(_leaf(token))
    return tuple(inlines)


def _leaf(token: Token) -> Inline:
    match token.type:
        case "code_inline":
            return CodeSpan(token.content)
        case "image":
            return InlineImage(str(token.attrs.get("src", "")), token.content)
        case "softbreak" | "hardbreak":
            return Text("\n")
        case _:
            return Text(token.content)
