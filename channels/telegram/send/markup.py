"""Render CommonMark for Telegram: plain text and entities counted in UTF-16 units.

The rules are in the Bot API's "Formatting options": `code` and `pre` contain no entities and are in none,
quotes do not nest, links contain no links. A message has at most 100 entities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

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
from channels.telegram.text import measure

MAX_ENTITIES = 100
RULE = "———"
_STYLES = {"strong": "bold", "emphasis": "italic", "strike": "strikethrough"}
_SCHEMES = {"http", "https", "tg", "mailto", "tel"}
_PRIORITY = {"pre": 0, "text_link": 1, "code": 2, "blockquote": 3}
"""Entity types that are kept first if there are too many."""


@dataclass(frozen=True, slots=True)
class RenderedEntity:
    """A formatted part of the text; offset and length are in UTF-16 units."""

    type: str
    offset: int
    length: int
    url: str = ""
    language: str = ""

    @property
    def end(self) -> int:
        """The offset after the last unit."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A text with its entities, ready to send."""

    text: str
    entities: tuple[RenderedEntity, ...] = ()


def encode_entity(entity: RenderedEntity) -> dict[str, str | int]:
    """Return the entity as a MessageEntity of the Bot API."""
    extras = {"url": entity.url, "language": entity.language}
    shape: dict[str, str | int] = {"type": entity.type, "offset": entity.offset, "length": entity.length}
    return {**shape, **{name: value for name, value in extras.items() if value}}


def render(markdown: str) -> RenderedText:
    """Return the text with its entities; text that would render to nothing stays unchanged."""
    builder = _TextBuilder()
    _blocks(builder, parse(markdown), "")
    text = builder.text
    if not text.strip():
        return RenderedText(markdown)
    lead = measure(text) - measure(text.lstrip())
    end = measure(text.rstrip())
    return RenderedText(text.strip(), _apply_nesting_rules(_clip(builder.entities, lead, end)))


class _TextBuilder:
    """Collects text and entities and counts UTF-16 units."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.length = 0
        self.entities: list[RenderedEntity] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def write(self, text: str) -> None:
        self._parts.append(text)
        self.length += measure(text)

    @property
    def position(self) -> int:
        """The number of writes so far; `since` returns the text written after a position."""
        return len(self._parts)

    def since(self, position: int) -> str:
        return "".join(self._parts[position:])

    def add_entity(self, kind: str, start: int, *, url: str = "", language: str = "") -> None:
        if self.length > start:
            self.entities.append(RenderedEntity(kind, start, self.length - start, url, language))


def _blocks(builder: _TextBuilder, blocks: Iterable[Block], indent: str) -> None:
    """Write blocks one below the other, with a blank line where the source has one."""
    for number, block in enumerate(blocks):
        if number:
            builder.write("\n\n" if block.gap else "\n")
            builder.write(indent)
        _block(builder, block, indent)


def _block(builder: _TextBuilder, block: Block, indent: str) -> None:
    start = builder.length
    match block:
        case Paragraph(children=children):
            _inlines(builder, children, indent)
        case Heading(children=children):
            _inlines(builder, children, indent)
            builder.add_entity("bold", start)
        case Quote(children=children):
            _blocks(builder, children, "")
            builder.add_entity("blockquote", start)
        case ListBlock():
            _list_block(builder, block, indent)
        case Fence():
            _fence(builder, block)
        case Table(text=text):
            builder.write(text)
            builder.add_entity("pre", start)
        case ThematicBreak():
            builder.write(RULE)


def _fence(builder: _TextBuilder, block: Fence) -> None:
    """Write code; the info string's first word is the language, the rest goes above the code."""
    language, _, rest = block.info.partition(" ")
    if rest.strip():
        builder.write(rest.strip() + "\n")
    start = builder.length
    builder.write(block.text if block.text.strip() else f"{language}{block.text}")
    builder.add_entity("pre", start, language=language)


def _list_block(builder: _TextBuilder, block: ListBlock, indent: str) -> None:
    for number, item in enumerate(block.items):
        if number:
            builder.write("\n\n" if block.loose and item and item[0].gap else "\n")
            builder.write(indent)
        mark = "• " if block.start is None else f"{block.start + number}. "
        builder.write(mark)
        _blocks(builder, item, indent + "  ")


def _inlines(builder: _TextBuilder, children: Sequence[Inline], indent: str) -> None:
    for child in children:
        start, position = builder.length, builder.position
        match child:
            case Text(text):
                builder.write(text.replace("\n", "\n" + indent))
            case CodeSpan(text):
                builder.write(text)
                builder.add_entity("code", start)
            case StyledText(style, inner):
                _inlines(builder, inner, indent)
                builder.add_entity(_STYLES[style], start)
            case Link(url, inner):
                _inlines(builder, inner, indent)
                _link(builder, url, start, position)
            case InlineImage(url, alt):
                builder.write(alt or url)
                _link(builder, url, start, position)


def _link(builder: _TextBuilder, url: str, start: int, position: int) -> None:
    """Turn the text written since `position` into a link; write out a URL that Telegram would refuse."""
    text = builder.since(position)
    if not text:
        builder.write(url)
    elif _is_absolute(url) and text != url:
        builder.add_entity("text_link", start, url=url)
    elif url and text != url:
        builder.write(f" ({url})")


def _is_absolute(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in _SCHEMES and bool(parts.netloc or parts.path)


def _clip(entities: Iterable[RenderedEntity], lead: int, end: int) -> list[RenderedEntity]:
    """Shift and clip entities after white space was removed from both ends."""
    clipped = []
    for entity in entities:
        start, stop = max(entity.offset, lead), min(entity.end, end)
        if start < stop:
            clipped.append(replace(entity, offset=start - lead, length=stop - start))
    return clipped


def _apply_nesting_rules(entities: Sequence[RenderedEntity]) -> tuple[RenderedEntity, ...]:
    """Apply Telegram's nesting rules and its limit on the number of entities."""
    entities = _highest_priority(entities)
    quotes = _outermost(_of_type("blockquote", entities))
    links = _outermost(_of_type("text_link", entities))
    code = [entity for entity in entities if entity.type in {"code", "pre"} and not _overlaps(entity, links)]
    others = [entity for kind in _STYLES.values() for entity in _outermost(_of_type(kind, entities))]
    kept = _highest_priority([*code, *links, *_subtract([*quotes, *others], code)])
    return tuple(sorted(kept, key=lambda entity: (entity.offset, -entity.length, entity.type)))


def _highest_priority(entities: Sequence[RenderedEntity]) -> list[RenderedEntity]:
    """Keep as many entities as Telegram accepts; code and links go before styles."""
    return sorted(entities, key=lambda entity: _PRIORITY.get(entity.type, len(_PRIORITY)))[:MAX_ENTITIES]


def _of_type(kind: str, entities: Sequence[RenderedEntity]) -> list[RenderedEntity]:
    return [entity for entity in entities if entity.type == kind]


def _outermost(entities: Sequence[RenderedEntity]) -> list[RenderedEntity]:
    kept: list[RenderedEntity] = []
    for entity in sorted(entities, key=lambda entity: (entity.offset, -entity.length)):
        if not kept or entity.offset >= kept[-1].end:
            kept.append(entity)
    return kept


def _overlaps(entity: RenderedEntity, others: Sequence[RenderedEntity]) -> bool:
    return any(entity.offset < other.end and other.offset < entity.end for other in others)


def _subtract(entities: Sequence[RenderedEntity], holes: Sequence[RenderedEntity]) -> list[RenderedEntity]:
    """Cut the holes out of the entities."""
    pieces = list(entities)
    for hole in holes:
        pieces = [rest for piece in pieces for rest in _cut_out(piece, hole)]
    return pieces


def _cut_out(entity: RenderedEntity, hole: RenderedEntity) -> list[RenderedEntity]:
    if hole.offset >= entity.end or entity.offset >= hole.end:
        return [entity]
    before = replace(entity, length=max(0, hole.offset - entity.offset))
    after = replace(entity, offset=hole.end, length=max(0, entity.end - hole.end))
    return [part for part in (before, after) if part.length]
