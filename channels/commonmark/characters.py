"""Find where a text can be cut between the characters that people see."""

from __future__ import annotations

import unicodedata

MAX_CODE_POINTS = 16
"""Code points of one visible character, such as an emoji of a family, that are kept together."""

_JOINER = "\u200d"


def between_characters(line: str, begin: int, end: int) -> int:
    """Return where to cut, at most `MAX_CODE_POINTS` before `end`, outside of what people see as one."""
    for position in range(end, max(begin, end - MAX_CODE_POINTS), -1):
        if not _is_inside_character(line, begin, position):
            return position
    return end


def _is_inside_character(line: str, begin: int, position: int) -> bool:
    """Return whether a cut separates a mark, a joined emoji or half of a flag from what it belongs to."""
    after = line[position]
    if unicodedata.category(after).startswith("M") or _JOINER in {after, line[position - 1]}:
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff":  # the colour of a skin
        return True
    letters = position
    while letters > begin and _is_flag_letter(after) and _is_flag_letter(line[letters - 1]):
        letters -= 1
    return (position - letters) % 2 == 1


def _is_flag_letter(one: str) -> bool:
    return "\U0001f1e6" <= one <= "\U0001f1ff"
