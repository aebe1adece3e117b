"""Text and button ids as Discord accepts them."""

from __future__ import annotations

import re

_PROMPT = re.compile(r"\?([0-9]{2})(.*)", re.DOTALL)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 can carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def parse_custom_id(custom: str) -> tuple[str, str]:
    """Return the words and the prompt of a button's id."""
    found = _PROMPT.fullmatch(custom)
    if found is None:
        return custom, ""
    length = int(found[1])
    return found[2][:length], found[2][length:]
