"""Clean text and parse button ids for Discord."""

from __future__ import annotations

import re

_PROMPT = re.compile(r"\?([0-9]{2})(.*)", re.DOTALL)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def parse_custom_id(custom: str) -> tuple[str, str]:
    """Return the data and the prompt of a button's id."""
    found = _PROMPT.fullmatch(custom)
    if found is None:
        return custom, ""
    length = int(found[1])
    return found[2][:length], found[2][length:]
