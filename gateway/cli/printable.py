"""Text that a terminal shows as it is."""

from __future__ import annotations


def clean(text: str) -> str:
    """Remove control characters that move the cursor or change colours; output is untrusted."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in text)


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, as Python reads bytes that are not UTF-8."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)
