"""Render CommonMark as plain text, for platforms that show no markup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    parse,
)


def render(text: str) -> str:
    """Return the text with every word, in lines as people write them without markup."""
    return "\n".join(_lines(parse(text))).strip("\n")


def fit(text: str, limit: int) -> str:
    """Return the rendered text, or the source if only that fits the limit."""
    rendered = render(text)
    return rendered if rendered and utf16_length(rendered) <= limit else text


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 units, which is never less than any platform counts characters."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _lines(blocks: Sequence[Block]) -> Iterator[str]:
    for number, block in enumerate(blocks):
        if number and block.gap:
            yield ""
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph() | Heading():
            yield from "".join(map(_inline, block.children)).split("\n")
        case Fence() | Table():
            yield from block.text.split("\n")
        case Quote():
            yield from (f"> {line}" for line in _lines(block.children))
        case ListBlock():
            yield from _list(block)
        case _:
            yield "—"


def _list(block: ListBlock) -> Iterator[str]:
    for number, item in enumerate(block.items):
        mark = "- " if block.start is None else f"{block.start + number}. "
        for index, line in enumerate(list(_lines(item)) or [""]):
            yield f"{' ' * len(mark) if index else mark}{line}"


def _inline(inline: Inline) -> str:
    match inline:
        case Text() | CodeSpan():
            return inline.text
        case StyledText():
            return "".join(map(_inline, inline.children))
        case Link():
            label, url = "".join(map(_inline, inline.children)), inline.url.removeprefix("mailto:")
            return f"{label} ({url})" if label.rstrip("/") not in {"", url.rstrip("/")} else url
        case InlineImage():
            return f"{inline.alt} ({inline.url})" if inline.alt else inline.url
