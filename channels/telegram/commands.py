"""The orders people give the bot: the words, Telegram's menu of them, how a text is read; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MENU = {
    "new": "Start a new conversation",
    "stop": "Stop what is running",
    "status": "Tell what is going on",
    "jobs": "List background jobs (logs ID, stop ID)",
    "approve": "Approve a command",
    "deny": "Deny a command",
    "queue": "What happens to messages while an answer is under way",
    "help": "Tell what the bot understands",
}
_ALIASES = {"start": "help"}
_WITHOUT_ARGUMENTS = frozenset(MENU) - {"approve", "deny"}
_SLASH = re.compile(r"/(\w{1,64})(?:@(\w{1,64}))?(?=\s|$)", re.ASCII)
_MAX_LENGTH = 200
"""Characters of an order without a slash; what is longer is talk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandText:
    """A word of command as it was written: `to` is the bot it names, if it names one."""

    name: str
    rest: str
    bot_username: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the word is one of ours."""
        return self.name in MENU

    @property
    def text(self) -> str:
        """The order as it is written to us alone."""
        return f"/{self.name} {self.rest}".rstrip()


def parse_slash(text: str) -> CommandText | None:
    """Read `/word@bot rest`."""
    found = _SLASH.match(text)
    if found is None:
        return None
    name = found[1].lower()
    return CommandText(
        name=_ALIASES.get(name, name), rest=text[found.end() :].strip(), bot_username=found[2] or ""
    )


def parse_words(text: str) -> CommandText | None:
    """Read words after a mention that are nothing but an order: `stop`, `jobs logs ID`."""
    words = text.split()
    if not words or len(text) > _MAX_LENGTH:
        return None
    name, rest = words[0].lower(), words[1:]
    alone = name in _WITHOUT_ARGUMENTS and not rest
    deciding = name in {"approve", "deny"} and bool(rest) and rest[0].startswith("apr_")
    asking = name == "jobs" and len(rest) == 2 and rest[0] in {"logs", "stop"}  # noqa: PLR2004
    choosing = name == "queue" and len(rest) == 1
    wanted = alone or deciding or asking or choosing
    return CommandText(name=name, rest=" ".join(rest)) if wanted else None
