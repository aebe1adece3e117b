"""The bot's commands, and how they are parsed in platforms without commands of their own; pure."""

from __future__ import annotations

from collections.abc import Mapping

from channels.message import Command, Message

DESCRIPTIONS: Mapping[str, str] = {
    "new": "Start a new conversation",
    "stop": "Stop what is running",
    "retry": "Try again what failed or waits for another attempt",
    "undo": "Take back the last exchange",
    "status": "Show what is running",
    "jobs": "List the background jobs (logs ID, stop ID)",
    "approve": "Approve a command that waits, by its id",
    "deny": "Deny a command that waits, by its id",
    "answer": "Answer a question: its id, and the answer",
    "queue": "Set what happens to messages during an answer: followup, collect, steer, interrupt",
    "schedule": "List what is scheduled, or start something at a time: every day 9:00 report",
    "remind": "Remind me, as in: in 20m drink tea",
    "memory": "List my notes for this chat, or delete one: delete ID",
    "model": "Show or select the model",
    "compact": "Summarise what was said so far",
    "verbose": "Show which tools run: on or off",
    "usage": "Show what this conversation has used",
    "link": "Join your accounts on several platforms by a code",
    "signin": "Sign in to services that I use for you",
    "signout": "Sign out of a service",
    "title": "Name this conversation in lists",
    "help": "Show the commands",
}
"""The commands, each with what menus say about it: at most 100 characters, Discord's limit."""

WITH_ARGUMENTS = frozenset(DESCRIPTIONS) - {
    *("new", "stop", "retry", "undo", "status", "compact", "usage", "signin", "help")
}
"""The commands that can be followed by words."""

COMMANDS = frozenset({*DESCRIPTIONS, "start"})
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
