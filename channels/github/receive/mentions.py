"""Find a mention of the app in a comment; pure."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(```|~~~)")
_CODE = re.compile(r"`[^`]*`")


def find_mention(text: str, slug: str) -> tuple[bool, str]:
    """Return whether the app is mentioned, and the text without a mention at its start.

    As on GitHub, code holds no mention. Neither does a quote: it repeats what was answered before.
    """
    mention = re.compile(rf"(?<![\w@/`.-])@{re.escape(slug)}(?:\[bot\])?(?![\w-])", re.IGNORECASE)
    is_mentioned = any(mention.search(line) for line in _own_lines(text))
    start = mention.match(text)
    return is_mentioned, text[start.end() :].lstrip(" ,:\n\t") if start else text


def _own_lines(text: str) -> list[str]:
    lines, is_code = [], False
    for line in text.split("\n"):
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code and not line.lstrip().startswith(">"):
            lines.append(_CODE.sub("", line))
    return lines
