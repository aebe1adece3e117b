"""The bot's vocabulary at Discord: as slash commands, and as words after a mention; pure.

A word after a mention is an order only in the form an order has: `@bot stop` is one, and `@bot stop using
tabs` is talk for the agent. With a slash before it, whatever follows belongs to the order.
"""

from __future__ import annotations

import re
from typing import Any

RETIRED_COMMANDS = frozenset({"dovecote"})
"""Commands that an earlier version registered."""

ASK_COMMAND = "ask"
"""The slash command that says its text as it is."""

ARGUMENTS_OPTION = "words"
"""The option that holds what follows an order's name."""

COMMANDS = {
    "new": "Start a new conversation",
    "stop": "Stop what is running",
    "status": "Tell what is going on",
    "jobs": "List the background jobs, or `logs ID`, `stop ID`",
    "approve": "Approve a waiting command",
    "deny": "Deny a waiting command",
    "queue": "What becomes of messages while one is answered: followup, collect, steer, interrupt",
    "help": "Show what the bot understands",
}
_WITH_ARGUMENTS = {"jobs", "approve", "deny", "queue"}

_SLASH_PATTERN = re.compile(r"/(?P<name>[a-z]{1,32})(?:\s+(?P<rest>.*))?", re.DOTALL | re.IGNORECASE)
_WORDS_PATTERN = re.compile(
    r"(?:(?P<name>new|stop|status|help|jobs|approve|deny|queue)[.!?]?"
    r"|(?P<jobs>jobs)\s+(?P<which>(?:logs|stop)\s+\S+)"
    r"|(?P<verdict>approve|deny)\s+(?P<what>apr_\S+(?:\s.*)?)"
    r"|(?P<queue>queue)\s+(?P<mode>followup|collect|steer|interrupt))",
    re.DOTALL | re.IGNORECASE,
)


def parse_slash(text: str) -> tuple[str, str] | None:
    """Return the order that a text with a slash before it gives: its name, and what follows."""
    found = _SLASH_PATTERN.fullmatch(text)
    name = found["name"].lower() if found else ""
    known = name in COMMANDS or name == "start"
    return (name, (found["rest"] or "").strip()) if found and known else None


def parse_words(text: str) -> tuple[str, str] | None:
    """Return the order that the words after a mention give."""
    found = _WORDS_PATTERN.fullmatch(text)
    if found is None:
        return None
    name = found["name"] or found["jobs"] or found["verdict"] or found["queue"]
    rest = found["which"] or found["what"] or found["mode"] or ""
    return name.lower(), rest.strip()


def definitions() -> tuple[dict[str, Any], ...]:
    """Return our slash commands, as they are registered."""
    asked = "What you want to know or have done"
    question = {"type": 3, "name": "question", "description": asked, "required": True}
    ask = {"type": 1, "name": ASK_COMMAND, "description": "Ask the bot", "options": [question]}
    return (ask, *(_definition(name, does) for name, does in COMMANDS.items()))


def _definition(name: str, description: str) -> dict[str, Any]:
    words = {"type": 3, "name": ARGUMENTS_OPTION, "description": "What the command is about"}
    options = [words] if name in _WITH_ARGUMENTS else []
    return {"type": 1, "name": name, "description": description, "options": options}


def merge_commands(registered: object) -> list[dict[str, Any]] | None:
    """Return all commands as they have to be registered; None when they are so already.

    Commands of other programs for the same bot stay.
    """
    there = {one["name"]: one for one in _commands_in(registered)}
    ours = {one["name"]: one for one in definitions()}
    if (
        all(name in there and _is_same_command(one, there[name]) for name, one in ours.items())
        and not there.keys() & RETIRED_COMMANDS
    ):
        return None
    return [*ours.values(), *(one for name, one in there.items() if name not in {*ours, *RETIRED_COMMANDS})]


def _commands_in(registered: object) -> list[dict[str, Any]]:
    found = registered if isinstance(registered, list) else []
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _is_same_command(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Compare what we define; Discord leaves out what is empty or false, and adds ids."""
    options = theirs.get("options")
    given = [one for one in options if isinstance(one, dict)] if isinstance(options, list) else []
    wanted = ours["options"]
    return (
        theirs.get("type", 1) == ours["type"]
        and theirs.get("description") == ours["description"]
        and len(given) == len(wanted)
        and all(_is_same_option(*pair) for pair in zip(wanted, given, strict=True))
    )


def _is_same_option(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    named = all(ours[key] == theirs.get(key) for key in ("type", "name", "description"))
    return named and bool(ours.get("required")) == bool(theirs.get("required"))
