"""Slack's message text, read: angle-bracket references, entities, and commands said after a mention."""

from __future__ import annotations

import re

COMMANDS = frozenset({"new", "stop", "status", "jobs", "approve", "deny", "queue", "help", "start"})
_REFERENCE = re.compile(r"<([^<>\n]{1,4000})>")
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ENTITY = re.compile("&(?:lt|gt|amp);")


def clean(text: str) -> str:
    """Return text any store takes: no half characters, no NUL."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")


def to_plain_text(text: str) -> str:
    """Return what a person reads: references by their words, entities as characters."""
    parts = _REFERENCE.split(text)
    return "".join(
        _unescape(_reference_text(part) if number % 2 else part) for number, part in enumerate(parts)
    )


def _unescape(text: str) -> str:
    return _ENTITY.sub(lambda found: _ENTITIES[found[0]], text)


def _reference_text(reference: str) -> str:
    """Give a reference's words: `@U1`, `#C1|name`, `!here`, `!subteam^S1|@team`, `https://…|label`."""
    target, _, label = reference.partition("|")
    if target.startswith(("@", "#")):
        return target[0] + (label.lstrip("@#") or target[1:])
    if target.startswith("!"):
        return label or "@" + target[1:].partition("^")[0]
    shown = target.removeprefix("mailto:")
    return shown if label in {"", target, shown} or target.endswith(f"://{label}") else f"{label} ({target})"


def strip_mention(text: str, bot_id: str) -> tuple[str, bool]:
    """Drop a mention of the bot from the start of raw text; say whether one stands anywhere."""
    mention = re.compile(rf"<@{re.escape(bot_id)}(?:\|[^<>]*)?>")
    if not mention.search(text):
        return text, False
    start = mention.match(text.lstrip())
    return (text.lstrip()[start.end() :].lstrip(" ,:\n\t") if start else text), True


def parse_command(text: str) -> tuple[str, str] | None:
    """Return (word, rest) of words that begin with one of the bot's vocabulary."""
    name, rest = (*text.split(None, 1), "", "")[:2]
    return (name.lower(), rest.strip()) if name.lower() in COMMANDS else None


def parse_slash_command(text: str) -> tuple[str, str] | None:
    """Return the order in `/word rest`."""
    return parse_command(text[1:]) if text.startswith("/") else None


def parse_mention_command(text: str) -> tuple[str, str] | None:
    """Return the order in words that are nothing else, said after a mention, or in `/word rest`."""
    words = text.split()
    if not words or len(text) > 2000:  # noqa: PLR2004 - no order is longer
        return None
    if text.startswith("/"):
        return parse_slash_command(text)
    name, rest = words[0].lower(), words[1:]
    deciding = name in {"approve", "deny"} and (not rest or rest[0].startswith("apr_"))
    asking = name == "jobs" and len(rest) == 2 and rest[0] in {"logs", "stop"}  # noqa: PLR2004
    queueing = name == "queue" and len(rest) == 1
    alone = name in COMMANDS and not rest
    return parse_command(text) if deciding or asking or queueing or alone else None


def measure(text: str) -> int:
    """Count UTF-16 units of the text as it travels, with `&`, `<` and `>` escaped."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return units + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
