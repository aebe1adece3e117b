"""Text that a terminal shows as it is."""

from __future__ import annotations

import unicodedata

_JOINERS = frozenset("\u200c\u200d\u200e\u200f")
"""Letters and emoji are joined or kept apart by two of them; two mark the direction of what is beside them.

Characters that change the order of whole texts (U+202A to U+202E, U+2066 to U+2069) are not among them.
"""


def clean(text: str) -> str:
    """Remove control characters that move the cursor or change colours; output is untrusted.

    Spaces of any width stay, as in French numbers and Japanese text.
    """
    return "".join(sign if sign in "\n\t" or _is_shown(sign) else "�" for sign in text)


def _is_shown(sign: str) -> bool:
    return sign.isprintable() or sign in _JOINERS or unicodedata.category(sign) == "Zs"


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, as Python reads bytes that are not UTF-8."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)
