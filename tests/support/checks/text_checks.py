"""Compare a text with its parts."""

from __future__ import annotations

import re


def packed(text: str) -> str:
    """Drop all white space."""
    return re.sub(r"\s+", "", text)


def holds_in_order(needle: str, hay: str) -> bool:
    """Return whether all characters of `needle` are in `hay`, in their order."""
    rest = iter(hay)
    return all(character in rest for character in needle)


def utf16(text: str) -> int:
    """Measure as Telegram does."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
