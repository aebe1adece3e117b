"""The bot's commands: their names, Telegram's menu of them, and how text is parsed; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MENU = {
    "new": "Start a new conversation",
    "stop": "Stop what is running",
    "retry": "Try again what failed",
    "undo": "Take back the last exchange",
    "status": "Show what is running",
    "jobs": "List background jobs (logs ID, stop ID)",
    "approve": "Approve a command",
    "deny": "Deny a command",
    "answer": "Answer a question",
    "queue": "Set what happens to messages during an answer",
    "schedule": "List what is scheduled, or start something at a time",
    "remind": "Remind me, as in: in 20m drink tea",
    "memory": "List my notes for this chat, or: delete ID",
    "model": "Show or select the model",
    "compact": "Summarise what was said so far",
    "verbose": "Show which tools run: on or off",
    "usage": "Show what this conversation has used",
    "link": "Join your accounts on several platforms",
    "signin": "Sign in to services that I use for you",
    "signout": "Sign out of a service",
    "title": "Name this conversation in lists",
    "help": "Show the commands",
}
_ALIASES = {"start": "help"}
_WITHOUT_ARGUMENTS = frozenset(MENU) - {"approve", "deny", "answer", "signout", "title"}
_SLASH = re.compile(r"/(\w{1,64})(?:@(\w{1,64}))?(?=\s|$)", re.ASCII)
_MAX_LENGTH = 200
"""Characters of a command without a slash; longer text is a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandText:
    """A command as the user wrote it; `bot_username` is the bot it is addressed to, if any."""

    name: str
    rest: str
    bot_username: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the bot has this command."""
        return self.name in MENU

    @property
    def text(self) -> str:
        """The command as it would be written to this bot alone."""
        return f"/{self.name} {self.rest}".rstrip()


def parse_slash(text: str) -> CommandText | None:
    """Parse `/command@bot arguments`; None for any other text."""
    found = _SLASH.match(text)
    if found is None:
        return None
    name = found[1].lower()
    return CommandText(
        name=_ALIASES.get(name, name), rest=text[found.end() :].strip(), bot_username=found[2] or ""
    )


def parse_words(text: str) -> CommandText | None:
    """Parse text after a mention that is only a command, such as `stop` or `jobs logs ID`."""
    words = text.split()
    if not words or len(text) > _MAX_LENGTH:
        return None
    name, rest = words[0].lower(), words[1:]
    bare = name in _WITHOUT_ARGUMENTS and not rest
    decision = name in {"approve", "deny", "answer"} and bool(rest) and rest[0].startswith("apr_")
    jobs_command = name == "jobs" and len(rest) == 2 and rest[0] in {"logs", "stop"}  # noqa: PLR2004
    queue_mode = name == "queue" and len(rest) == 1
    is_command = bare or decision or jobs_command or queue_mode
    return CommandText(name=name, rest=" ".join(rest)) if is_command else None
