"""Clean text, ids and times of platforms' payloads; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

FORWARDED = "Forwarded message:"
"""The line before the text of a forwarded message, which the sender need not have written."""

UNKNOWN_MEDIA_TYPE = "application/octet-stream"
_EPOCH = datetime.fromtimestamp(0, UTC)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean(text: object) -> str:
    """Return text without lone surrogates and NUL, which databases do not store; "" for other values."""
    return replace_surrogates(text).replace("\0", "\ufffd") if isinstance(text, str) else ""


def append_forwarded(text: str, forwarded: Iterable[str]) -> str:
    """Return a text with those of the messages that are forwarded with it, each after a line that says so."""
    found = (one.strip() for one in forwarded)
    return "\n\n".join(filter(None, (text, *(f"{FORWARDED}\n{one}" for one in found if one))))


CARD_FIELDS = frozenset({"title", "pretext", "text", "description", "name", "value", "author_name", "footer"})
"""The fields of cards that hold words."""

MAX_CARD_LEVELS = 20
"""Lists and objects of a card that are read one in the other; the platforms' own have at most ten."""


def append_cards(text: str, cards: object, to_plain: Callable[[str], str] = str) -> str:
    """Return a text with the words of cards that it does not contain, each on a line.

    Programs write in cards (embeds, attachments, blocks), in place of a text or beside a short one. Blocks of
    rich text repeat the text, and what people operate says nothing.
    """
    words = dict.fromkeys(to_plain(clean(one)).strip() for one in _card_words(cards))
    return "\n".join(filter(None, (text, *(one for one in words if one not in text))))


def _card_words(card: object, levels: int = MAX_CARD_LEVELS) -> Iterator[str]:
    if isinstance(card, list) and levels:
        for one in card:
            yield from _card_words(one, levels - 1)
    elif isinstance(card, dict) and levels and not _is_unread(card):
        for name, value in card.items():
            if name in CARD_FIELDS and isinstance(value, str):
                yield value
            elif isinstance(value, dict | list):
                yield from _card_words(value, levels - 1)


def _is_unread(card: Mapping[str, Any]) -> bool:
    return card.get("type") == "rich_text" or "action_id" in card or card.get("is_share") is True


def append_links(text: str, links: Iterable[tuple[str | None, str | None]]) -> str:
    """Return a text with the names and addresses of files that are shared as links, each on a line."""
    described = (f"File: {', '.join(map(clean, filter(None, link)))}" for link in links if any(link))
    return "\n".join(filter(None, (text, *described)))


def insert_links(text: str, links: Iterable[tuple[int, int, str]]) -> str:
    """Return a text with the addresses of its links, each behind the words that show it.

    A link is an offset and a length in UTF-16 units, and an address, which is "" for none.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    for offset, length, url in sorted(links, reverse=True):
        start, end = 2 * max(0, offset), 2 * max(0, offset + length)
        shown = units[start:end].decode("utf-16-le", "replace").strip()
        if url and not _shows(shown, url):
            units = units[:end] + f" ({url})".encode("utf-16-le", "surrogatepass") + units[end:]
    return units.decode("utf-16-le", "surrogatepass")


def _shows(words: str, url: str) -> bool:
    """Return whether the words are the address itself, as people write it."""
    return words.rstrip("/") in {one.rstrip("/") for one in (url, url.partition("://")[2])}


def to_number(value: object, default: float = 0.0) -> float:
    """Return a number that a platform gives as a number or as text, or a default for anything else."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return default


def integer_id(row: Mapping[str, Any], name: str = "id") -> int:
    """Return the id of a row whose ids are numbers, 0 for anything else; `name` is the field of the id."""
    number = row.get(name)
    return number if isinstance(number, int) else 0


def bare_file_name(name: object, *, otherwise: str) -> str:
    """Return the last part of a file name that a platform gives, or another name if it has none."""
    bare = clean(name).replace("\\", "/").rpartition("/")[2].strip()
    return bare if bare not in {"", ".", ".."} else otherwise


def form_file_name(name: str) -> str:
    """Return a file name that is valid in the header of a form field."""
    shown = "".join(one for one in replace_surrogates(name) if one.isprintable() and one not in '"\\')
    return shown.strip() or "file"


def form_media_type(media_type: str) -> str:
    """Return a media type that is valid in the header of a form field."""
    kind, slash, rest = media_type.partition("/")
    plain = kind.isascii() and rest.isascii() and "\n" not in rest and "\r" not in rest
    return media_type if slash and plain else UNKNOWN_MEDIA_TYPE


def identifier(value: object) -> str:
    """Return a platform's id as text; "" if it is neither a text nor a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else clean(value)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one in place of any other value."""
    return value if isinstance(value, dict) else {}


def text_at(value: object, *names: str) -> str:
    """Return the clean text at a path of names in a JSON object; "" if there is none."""
    for name in names:
        value = mapping(value).get(name)
    return clean(value)


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the entries of a JSON list, each as a JSON object; none of any other value."""
    return [mapping(one) for one in value] if isinstance(value, list) else []


def walk(rows: object, children: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a JSON list, each before those of its own list of the name `children`."""
    for one in mappings(rows):
        yield one
        yield from walk(one.get(children), children)


def iso_time(value: object) -> datetime:
    """Return the moment of an ISO 8601 text (UTC where it names no zone), or the epoch."""
    try:
        moment = datetime.fromisoformat(clean(value))
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return _EPOCH


def unix_time(milliseconds: object) -> datetime:
    """Return the moment of a number of milliseconds since 1970, or the epoch."""
    try:
        return datetime.fromtimestamp(int(str(milliseconds)) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return _EPOCH
