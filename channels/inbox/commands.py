"""Parse the bot's commands in platforms without commands of their own; pure."""

from __future__ import annotations

from channels.message import Command, Message

COMMANDS = frozenset(
    {"new", "stop", "retry", "undo", "status", "jobs", "approve", "deny", "answer", "queue", "help", "start"}
    | {"schedule", "remind", "memory", "model", "compact", "verbose", "usage", "link", "title"}
    | {"signin", "signout"}
)
_DECISIONS = frozenset({"approve", "deny", "answer"})
MAX_LENGTH = 2000
"""Characters of a command; longer text is a message."""


def parse_slash(text: str) -> tuple[str, str] | None:
    """Return (name, arguments) of `/name arguments` if the bot has this command."""
    if not text.startswith("/") or len(text) > MAX_LENGTH:
        return None
    name, _, rest = text[1:].replace("\n", " ").partition(" ")
    return (name.lower(), rest.strip()) if name.lower() in COMMANDS else None


def parse_decision(text: str) -> tuple[str, str] | None:
    """Return `/approve`, `/deny` or `/answer` with `apr_…`, which need no mention of the bot."""
    found = parse_slash(text)
    is_decision = found is not None and found[0] in _DECISIONS and found[1].startswith("apr_")
    return found if is_decision else None


def parse_mentioned(text: str) -> tuple[str, str] | None:
    """Return the command in text after a mention: `/name …`, or words that are only a command."""
    if text.startswith("/"):
        return parse_slash(text)
    words = text.split()
    if not words or len(text) > MAX_LENGTH or words[0].lower() not in COMMANDS:
        return None
    name, rest = words[0].lower(), words[1:]
    return (name, " ".join(rest)) if _is_only_a_command(name, rest) else None


def _is_only_a_command(name: str, rest: list[str]) -> bool:
    if name in _DECISIONS and rest:
        return rest[0].startswith("apr_")
    if name == "jobs" and rest:
        return len(rest) == 2 and rest[0] in {"logs", "stop"}  # noqa: PLR2004
    return (not rest and name != "title") or (name == "queue" and len(rest) == 1)


def as_command(message: Message, name: str, rest: str) -> Command:
    """Return a message as the command that its text is."""
    return Command(
        key=message.key,
        address=message.address,
        author=message.author,
        name=name,
        rest=rest,
        sent_at=message.sent_at,
        room=message.room,
        platform_id=message.platform_id,
    )
