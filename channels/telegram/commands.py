"""How text is parsed as a command of the bot; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from channels.inbox.commands import DESCRIPTIONS

_ALIASES = {"start": "help"}
_WITHOUT_ARGUMENTS = frozenset(DESCRIPTIONS) - {"approve", "deny", "answer", "signout", "title"}
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
        return self.name in DESCRIPTIONS

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
