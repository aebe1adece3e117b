"""Slack's message text, read: angle-bracket references, entities, and commands said after a mention."""

from __future__ import annotations

import re

COMMANDS = frozenset({"new", "stop", "status", "jobs", "approve", "deny", "help"})
_LONE = COMMANDS - {"approve", "deny"}
_REFERENCE = re.compile(r"<([^<>\n]{1,4000})>")
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ENTITY = re.compile("&(?:lt|gt|amp);")


def clean(text: str) -> str:
    """Return text any store takes: no half characters, no NUL."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")


def plain(text: str) -> str:
    """Return what a person reads: references by their words, entities as characters."""
    parts = _REFERENCE.split(text)
    return "".join(_unescape(_words(part) if number % 2 else part) for number, part in enumerate(parts))


def _unescape(text: str) -> str:
    return _ENTITY.sub(lambda found: _ENTITIES[found[0]], text)


def _words(reference: str) -> str:
    """Give a reference's words: `@U1`, `#C1|name`, `!here`, `!subteam^S1|@team`, `https://…|label`."""
    target, _, label = reference.partition("|")
    if target.startswith(("@", "#")):
        return target[0] + (label.lstrip("@#") or target[1:])
    if target.startswith("!"):
        return label or "@" + target[1:].partition("^")[0]
    shown = target.removeprefix("mailto:")
    return shown if label in {"", target, shown} or target.endswith(f"://{label}") else f"{label} ({target})"


def without_mention(text: str, bot_id: str) -> tuple[str, bool]:
    """Drop a mention of the bot from the start of raw text; say whether one stands anywhere."""
    mention = re.compile(rf"<@{re.escape(bot_id)}(?:\|[^<>]*)?>")
    if not mention.search(text):
        return text, False
    start = mention.match(text.lstrip())
    return (text.lstrip()[start.end() :].lstrip(" ,:\n\t") if start else text), True


def as_command(text: str) -> str:
    """Turn words that are nothing but a command, said after a mention, into the command."""
    words = text.split()
    if not words or len(text) > 200:  # noqa: PLR2004 - no command is longer
        return text
    name = words[0].lower()
    lone = name in _LONE and len(words) == 1
    deciding = name in {"approve", "deny"} and len(words) > 1 and words[1].startswith("apr_")
    asking = name == "jobs" and len(words) == 3 and words[1] in {"logs", "stop"}  # noqa: PLR2004
    return f"/{text.strip()}" if lone or deciding or asking else text


def slash_text(text: str) -> str:
    """Turn what stands behind `/dovecote` into a command, or leave it as a question; nothing is `/help`."""
    words = text.split()
    if not words:
        return "/help"
    known = words[0].lower() in COMMANDS
    return f"/{text.strip()}" if known else text.strip()
