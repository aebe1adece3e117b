"""The emoji that bots react with: what a platform has, and by which names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_EMOJI = 100
"""Characters of an emoji, or of its name on a platform."""

_SELECTOR = "\ufe0f"
"""The character that asks for a coloured picture; platforms leave it out or want it."""

_JOINER = "\u200d"
_KEYCAP = re.compile("[0-9#*]\ufe0f?\u20e3")
_FIRST_SYMBOL = 0x2000
MAX_SYMBOLS = 20
"""Characters of one emoji."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionEmoji:
    """The emoji that bots can react with on a platform.

    `names` are the platform's names by emoji; None: it takes any emoji as it is. `aliases` are emoji by other
    names that people write, such as `thumbsup`. `own_names` is a pattern of
    further names that the platform knows. `is_single`: a message has one reaction of a bot, so that a new
    one replaces the reaction that shows the message's status.
    """

    names: Mapping[str, str] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    own_names: str = ""
    is_single: bool = False

    def name_of(self, given: str) -> str | None:
        """Return the platform's name of an emoji or of its short name; None if it has none (pure)."""
        text = given.strip()
        if not text or len(text) > MAX_EMOJI:
            return None
        emoji = self.aliases.get(text.strip(":").lower(), text)
        if self.names is None:
            found = emoji if is_emoji(emoji) else None
        else:
            found = next((name for known, name in self.names.items() if bare(known) == bare(emoji)), None)
        if found is None and self.own_names and re.fullmatch(self.own_names, text.strip("<>:")):
            return text.strip("<>:")
        return found

    @property
    def examples(self) -> str:
        """What a platform with few emoji has; empty for one that takes nearly any."""
        return "" if self.names is None or self.own_names else " ".join(self.names)


def bare(emoji: str) -> str:
    """Return an emoji without the character that asks for a coloured picture (pure)."""
    return emoji.replace(_SELECTOR, "")


def is_emoji(text: str) -> bool:
    """Return whether a text may be one emoji: short, and of symbols alone (pure)."""
    if _KEYCAP.fullmatch(text):
        return True
    symbols = bare(text).replace(_JOINER, "")
    return 0 < len(text) <= MAX_SYMBOLS and all(
        ord(one) >= _FIRST_SYMBOL and one.isprintable() and not one.isalnum() for one in symbols or "a"
    )
