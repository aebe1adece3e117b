"""Parse Slack's message text: references in angle brackets, entities, and commands."""

from __future__ import annotations

import re

from channels.inbox.commands import COMMANDS

_REFERENCE = re.compile(r"<([^<>\n]{1,4000})>")
_MENTION = re.compile(r"<@([A-Z0-9]{1,255})[|>]")


def to_plain_text(text: str) -> str:
    """Return the text as a user reads it, with references and entities replaced."""
    parts = enumerate(_REFERENCE.split(text))
    shown = (_reference_text(part) if number % 2 else part for number, part in parts)
    return "".join(map(_unescape, shown))


def _unescape(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _reference_text(reference: str) -> str:
    """Return a reference's text: `@U1`, `#C1|name`, `!here`, `!subteam^S1|@team`, `https://…|label`."""
    target, _, label = reference.partition("|")
    if target.startswith(("@", "#")):
        return target[0] + (label.lstrip("@#") or target[1:])
    if target.startswith("!"):
        return label or "@" + target[1:].partition("^")[0]
    shown = target.removeprefix("mailto:")
    return shown if label in {"", target, shown} or target.endswith(f"://{label}") else f"{label} ({target})"


def mentioned_users(text: str) -> list[str]:
    """Return the ids of the users that a text mentions."""
    return _MENTION.findall(text)


def strip_mention(text: str, bot_id: str) -> tuple[str, bool]:
    """Remove a mention of the bot from the start; also return whether it is mentioned anywhere."""
    mention = re.compile(rf"<@{re.escape(bot_id)}(?:\|[^<>]*)?>")
    if not mention.search(text):
        return text, False
    start = mention.match(text.lstrip())
    return (text.lstrip()[start.end() :].lstrip(" ,:\n\t") if start else text), True


def parse_command(text: str) -> tuple[str, str] | None:
    """Return (name, arguments) of a text that begins with one of the bot's commands."""
    name, rest = (*text.split(None, 1), "", "")[:2]
    return (name.lower(), rest.strip()) if name.lower() in COMMANDS else None


def measure(text: str) -> int:
    """Return the length in UTF-16 units, with `&`, `<` and `>` escaped."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return units + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
