"""Parse button ids of Discord."""

from __future__ import annotations

import re

_PROMPT = re.compile(r"\?([0-9]{2})(.*)", re.DOTALL)


def parse_custom_id(custom: str) -> tuple[str, str]:
    """Return the data and the prompt of a button's id."""
    found = _PROMPT.fullmatch(custom)
    if found is None:
        return custom, ""
    length = int(found[1])
    return found[2][:length], found[2][length:]
