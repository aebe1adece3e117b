"""CommonMark as Telegram shows it: plain text and entities counted in UTF-16 units.

The rules are those of the Bot API's "Formatting options": `code` and `pre` hold nothing and are part of
nothing, quotes do not nest, links hold no other link; a message has at most 100 entities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from channels.markup import (
    Block,
    Code,
    Fence,
    Heading,
    Image,
    Inline,
    Link,
    Listing,
    Paragraph,
    Quote,
    Rule,
    Styled,
    Table,
    Text,
    parse,
)
from channels.telegram.text import measure

MOST_ENTITIES = 100
RULE = "———"
_STYLES = {"strong": "bold", "emphasis": "italic", "strike": "strikethrough"}
_SCHEMES = {"http", "https", "tg", "mailto", "tel"}
_WORTH = {"pre": 0, "text_link": 1, "code": 2, "blockquote": 3}
"""What is kept first when there are too many entities."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A stretch of the text with a meaning; offset and length are in UTF-16 units."""

    type: str
    offset: int
    length: int
    url: str = ""
    language: str = ""

    @property
    def end(self) -> int:
        """Where the stretch ends."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text ready to be sent."""

    text: str
    entities: tuple[Entity, ...] = ()


def dump(entity: Entity) -> dict[str, str | int]:
    """Return the entity as a MessageEntity of the Bot API."""
    extras = {"url": entity.url, "language": entity.language}
    shape: dict[str, str | int] = {"type": entity.type, "offset": entity.offset, "length": entity.length}
    return {**shape, **{name: value for name, value in extras.items() if value}}


def render(markdown: str) -> Rendered:
    """Return the text with its entities; text without any visible rendering is returned as it is."""
    canvas = _Canvas()
    _blocks(canvas, parse(markdown), "")
    text = canvas.text
    if not text.strip():
        return Rendered(markdown)
    lead = measure(text) - measure(text.lstrip())
    end = measure(text.rstrip())
    return Rendered(text.strip(), _tidy(_clip(canvas.entities, lead, end)))


class _Canvas:
    """The text so far, its length in UTF-16 units, and the entities so far."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.length = 0
        self.entities: list[Entity] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def write(self, text: str) -> None:
        self._parts.append(text)
        self.length += measure(text)

    @property
    def place(self) -> int:
        """How many pieces were written: `since` gives the text after such a place."""
        return len(self._parts)

    def since(self, place: int) -> str:
        return "".join(self._parts[place:])

    def mark(self, kind: str, start: int, *, url: str = "", language: str = "") -> None:
        if self.length > start:
            self.entities.append(Entity(kind, start, self.length - start, url, language))


def _blocks(canvas: _Canvas, blocks: Iterable[Block], indent: str) -> None:
    """Write blocks one under the other, with a blank line between them where the source has one."""
    for number, block in enumerate(blocks):
        if number:
            canvas.write("\n\n" if block.gap else "\n")
            canvas.write(indent)
        _block(canvas, block, indent)


def _block(canvas: _Canvas, block: Block, indent: str) -> None:
    start = canvas.length
    match block:
        case Paragraph(children=children):
            _inlines(canvas, children, indent)
        case Heading(children=children):
            _inlines(canvas, children, indent)
            canvas.mark("bold", start)
        case Quote(children=children):
            _blocks(canvas, children, "")
            canvas.mark("blockquote", start)
        case Listing():
            _listing(canvas, block, indent)
        case Fence():
            _fence(canvas, block)
        case Table(text=text):
            canvas.write(text)
            canvas.mark("pre", start)
        case Rule():
            canvas.write(RULE)


def _fence(canvas: _Canvas, block: Fence) -> None:
    """The first word of the info string is the language; the rest stands above the code."""
    language, _, rest = block.info.partition(" ")
    if rest.strip():
        canvas.write(rest.strip() + "\n")
    start = canvas.length
    canvas.write(block.text if block.text.strip() else f"{language}{block.text}")
    canvas.mark("pre", start, language=language)


def _listing(canvas: _Canvas, block: Listing, indent: str) -> None:
    for number, item in enumerate(block.items):
        if number:
            canvas.write("\n\n" if block.loose and item and item[0].gap else "\n")
            canvas.write(indent)
        mark = "• " if block.start is None else f"{block.start + number}. "
        canvas.write(mark)
        _blocks(canvas, item, indent + "  ")


def _inlines(canvas: _Canvas, children: Sequence[Inline], indent: str) -> None:
    for child in children:
        start, place = canvas.length, canvas.place
        match child:
            case Text(text):
                canvas.write(text.replace("\n", "\n" + indent))
            case Code(text):
                canvas.write(text)
                canvas.mark("code", start)
            case Styled(style, inner):
                _inlines(canvas, inner, indent)
                canvas.mark(_STYLES[style], start)
            case Link(url, inner):
                _inlines(canvas, inner, indent)
                _mark_link(canvas, url, start, place)
            case Image(url, alt):
                canvas.write(alt or url)
                _mark_link(canvas, url, start, place)


def _mark_link(canvas: _Canvas, url: str, start: int, place: int) -> None:
    """Make what was written a link; an address Telegram would refuse is written out instead."""
    shown = canvas.since(place)
    if not shown:
        canvas.write(url)
    elif _is_absolute(url) and shown != url:
        canvas.mark("text_link", start, url=url)
    elif url and shown != url:
        canvas.write(f" ({url})")


def _is_absolute(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in _SCHEMES and bool(parts.netloc or parts.path)


def _clip(entities: Iterable[Entity], lead: int, end: int) -> list[Entity]:
    """Fit entities to the text after white space was cut from both ends."""
    clipped = []
    for entity in entities:
        start, stop = max(entity.offset, lead), min(entity.end, end)
        if start < stop:
            clipped.append(replace(entity, offset=start - lead, length=stop - start))
    return clipped


def _tidy(entities: Sequence[Entity]) -> tuple[Entity, ...]:
    """Apply Telegram's nesting rules and its limit on the number of entities."""
    entities = _most_useful(entities)
    quotes = _outermost(_of("blockquote", entities))
    links = _outermost(_of("text_link", entities))
    code = [entity for entity in entities if entity.type in {"code", "pre"} and not _touches(entity, links)]
    others = [found for kind in _STYLES.values() for found in _outermost(_of(kind, entities))]
    kept = _most_useful([*code, *links, *_without([*quotes, *others], code)])
    return tuple(sorted(kept, key=lambda entity: (entity.offset, -entity.length, entity.type)))


def _most_useful(entities: Sequence[Entity]) -> list[Entity]:
    """Keep as many as Telegram takes; code and links go before styles."""
    return sorted(entities, key=lambda entity: _WORTH.get(entity.type, len(_WORTH)))[:MOST_ENTITIES]


def _of(kind: str, entities: Sequence[Entity]) -> list[Entity]:
    return [entity for entity in entities if entity.type == kind]


def _outermost(entities: Sequence[Entity]) -> list[Entity]:
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: (entity.offset, -entity.length)):
        if not kept or entity.offset >= kept[-1].end:
            kept.append(entity)
    return kept


def _touches(entity: Entity, others: Sequence[Entity]) -> bool:
    return any(entity.offset < other.end and other.offset < entity.end for other in others)


def _without(wholes: Sequence[Entity], holes: Sequence[Entity]) -> list[Entity]:
    """Cut the holes out of the wholes."""
    pieces = list(wholes)
    for hole in holes:
        pieces = [left for piece in pieces for left in _pierce(piece, hole)]
    return pieces


def _pierce(piece: Entity, hole: Entity) -> list[Entity]:
    if hole.offset >= piece.end or piece.offset >= hole.end:
        return [piece]
    before = replace(piece, length=max(0, hole.offset - piece.offset))
    after = replace(piece, offset=hole.end, length=max(0, piece.end - hole.end))
    return [part for part in (before, after) if part.length]
