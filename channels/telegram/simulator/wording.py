"""Parse formatted text as Telegram does, after the Bot API's "Formatting options".

It is stricter than Telegram, which silently repairs some errors: entities that overlap, leave the text or cut
a character in two are refused, so that a renderer's mistakes show.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from channels.telegram.simulator.failure import ApiFailure, bad_request

TEXT_LIMIT = 4096
CAPTION_LIMIT = 1024
ENTITY_LIMIT = 100
_STYLES = frozenset({"bold", "italic", "underline", "strikethrough", "spoiler"})
_SOLID = frozenset({"code", "pre"})
_DETECTED = frozenset({"mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number"})
_OTHERS = frozenset({"blockquote", "expandable_blockquote", "text_link", "text_mention", "custom_emoji"})
TYPES = _STYLES | _SOLID | _DETECTED | _OTHERS
_TAGS = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "tg-spoiler": "spoiler",
    "span": "spoiler", "a": "text_link", "code": "code", "pre": "pre", "blockquote": "blockquote",
}  # fmt: skip
_MARKS = {"*": "bold", "_": "italic", "__": "underline", "~": "strikethrough", "||": "spoiler"}
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)([^>]*)>|<")
_HREF = re.compile(r"""href\s*=\s*["']?([^"'\s>]+)""")
_V2 = re.compile(r"\\(.)|```(?:(\w+)\n)?(.*?)```|`(.*?)`|(\|\||__|[*_~])|\[|\]\(([^)]*)\)|(.)", re.DOTALL)
_RESERVED = frozenset("[]()~`>#+-=|{}.!")

Entity = dict[str, Any]


def utf16_length(text: str) -> int:
    """Return the number of UTF-16 code units."""
    return sum(2 if ord(character) > 0xFFFF else 1 for character in text)  # noqa: PLR2004


def parse_text(text: str, mode: str, given: object) -> tuple[str, list[Entity]]:
    """Return the visible text and its entities; raises ApiFailure as Telegram would."""
    match mode.lower():
        case "":
            shown, entities = text, _parse_entities(text, given)
        case "html":
            shown, entities = _from_html(text)
        case "markdownv2":
            shown, entities = _from_markdown(text)
        case _:
            raise bad_request("unsupported parse_mode")
    return _trim(shown, entities[:ENTITY_LIMIT])


def _trim(text: str, entities: Sequence[Entity]) -> tuple[str, list[Entity]]:
    lead = utf16_length(text) - utf16_length(text.lstrip())
    size = utf16_length(text.strip())
    moved = []
    for entity in entities:
        start = max(0, entity["offset"] - lead)
        stop = min(size, entity["offset"] + entity["length"] - lead)
        if stop > start:
            moved.append({**entity, "offset": start, "length": stop - start})
    return text.strip(), moved


def _parse_entities(text: str, given: object) -> list[Entity]:
    """Validate entities given by offset and length."""
    if given in (None, ""):
        return []
    try:
        entities = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        raise bad_request("can't parse entities: the JSON is broken") from None
    if not isinstance(entities, list):
        raise bad_request("can't parse entities: an array is expected")
    borders = set(_boundaries(text))
    for entity in entities:
        _check_entity(entity, borders)
    _check_nesting(entities)
    return entities


def _boundaries(text: str) -> Iterator[int]:
    """Yield the offsets between two characters."""
    place = 0
    yield place
    for character in text:
        place += utf16_length(character)
        yield place


def _check_entity(entity: object, boundaries: set[int]) -> None:
    if not isinstance(entity, dict) or entity.get("type") not in TYPES:
        raise bad_request("can't parse entities: unsupported type of an entity")
    offset, length = entity.get("offset"), entity.get("length")
    if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or length <= 0:
        raise bad_request("can't parse entities: an offset and a length are expected")
    if offset not in boundaries or offset + length not in boundaries:
        raise bad_request(f"can't parse entities: the entity at {offset} of {length} does not fit the text")
    if entity["type"] == "text_link" and not str(entity.get("url") or "").strip():
        raise bad_request("can't parse entities: a link without url")


def _check_nesting(entities: Sequence[Entity]) -> None:
    for index, one in enumerate(entities):
        for other in entities[index + 1 :]:
            first, second = sorted((one, other), key=lambda entity: (entity["offset"], -entity["length"]))
            if second["offset"] >= first["offset"] + first["length"]:
                continue
            if second["offset"] + second["length"] > first["offset"] + first["length"]:
                raise bad_request("can't parse entities: two entities overlap")
            if not _may_nest(first["type"], second["type"]):
                raise bad_request(f"can't parse entities: {second['type']} inside {first['type']}")


def _may_nest(outer: str, inner: str) -> bool:
    if {outer, inner} & _SOLID:
        return False
    return outer != inner and (outer in _STYLES or inner in _STYLES or outer.endswith("blockquote"))


def _from_html(source: str) -> tuple[str, list[Entity]]:
    shown: list[str] = []
    entities: list[Entity] = []
    opened: list[tuple[str, int, Entity]] = []
    size = place = 0
    for tag in _TAG.finditer(source):
        text = html.unescape(source[place : tag.start()])
        shown.append(text)
        size += utf16_length(text)
        place = tag.end()
        _parse_tag(tag, size, opened, entities)
    if opened:
        raise bad_request(
            f"can't parse entities: can't find end tag corresponding to start tag \"{opened[-1][0]}\""
        )
    return "".join([*shown, html.unescape(source[place:])]), entities


def _parse_tag(
    tag: re.Match[str], size: int, opened: list[tuple[str, int, Entity]], entities: list[Entity]
) -> None:
    name = (tag[2] or "").lower()
    if name not in _TAGS:
        raise bad_request(
            f'can\'t parse entities: unsupported start tag "{name}" at byte offset {tag.start()}'
        )
    if not tag[1]:
        href = _HREF.search(tag[3])
        opened.append((name, size, {"url": href[1]} if href and name == "a" else {}))
        return
    if not opened or opened[-1][0] != name:
        raise bad_request(f"can't parse entities: unexpected end tag at byte offset {tag.start()}")
    _, start, extras = opened.pop()
    if size > start:
        entities.append({"type": _TAGS[name], "offset": start, "length": size - start, **extras})


def _from_markdown(source: str) -> tuple[str, list[Entity]]:
    shown: list[str] = []
    entities: list[Entity] = []
    opened: list[tuple[str, int]] = []
    for token in _V2.finditer(source):
        size = utf16_length("".join(shown))
        escaped, language, block, span, mark, url, plain = token.groups()
        if block is not None or span is not None:
            code = {"type": "pre" if block is not None else "code", "offset": size}
            shown.append(block if block is not None else span)
            entities.append(
                {**code, "length": utf16_length(shown[-1]), **({"language": language} if language else {})}
            )
        elif mark or url is not None or token[0] == "[":
            _parse_mark(token, size, opened, entities)
        elif plain in _RESERVED and not (plain == ">" and _at_line_start(source, token.start())):
            raise _reserved(plain)
        else:
            shown.append(escaped or ("" if plain == ">" else plain) or "")
    if opened:
        raise bad_request(
            f"can't parse entities: can't find end of the entity starting at byte offset {opened[-1][1]}"
        )
    return "".join(shown), entities


def _parse_mark(
    token: re.Match[str], size: int, opened: list[tuple[str, int]], entities: list[Entity]
) -> None:
    mark, url = token[5], token[6]
    if token[0] == "[":
        opened.append(("[", size))
        return
    wanted = mark or "["
    if opened and opened[-1][0] == wanted:
        start = opened.pop()[1]
        kind = _MARKS[mark] if mark else "text_link"
        entities.append(
            {"type": kind, "offset": start, "length": size - start, **({"url": url} if url else {})}
        )
    elif mark:
        opened.append((mark, size))
    else:
        raise bad_request(
            "can't parse entities: character ']' is reserved and must be escaped with the preceding '\\'"
        )


def _reserved(character: str) -> ApiFailure:
    advice = "is reserved and must be escaped with the preceding '\\'"
    return bad_request(f"can't parse entities: character '{character}' {advice}")


def _at_line_start(source: str, place: int) -> bool:
    return place == 0 or source[place - 1] == "\n"


def find_entities(text: str, username: str) -> list[Entity]:
    """Return the entities a client finds in typed text: commands and mentions."""
    pattern = re.compile(r"(?<!\S)(/\w{1,64}(?:@\w+)?)|(?<![\w@])(@\w{3,64})")
    found = []
    for match in pattern.finditer(text):
        kind = "bot_command" if match[1] else "mention"
        found.append(
            {"type": kind, "offset": utf16_length(text[: match.start()]), "length": utf16_length(match[0])}
        )
    return [entity for entity in found if username or entity["type"] != "mention"]


__all__ = [
    "CAPTION_LIMIT",
    "TEXT_LIMIT",
    "ApiFailure",
    "Entity",
    "find_entities",
    "parse_text",
    "utf16_length",
]
