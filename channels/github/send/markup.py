"""Render CommonMark for GitHub, which shows it as it is, except for HTML and mentions.

`<` outside of code is escaped, because GitHub removes tags that it does not know. A mention would notify a
person, so a space of no width follows its `@`.
"""

from __future__ import annotations

import re

from channels.github.threads import ESCAPES
from channels.inbox.code import map_prose

_AUTOLINK = re.compile(r"<(?=https?://[^\s<>]{1,2000}>)")
_MENTION = re.compile(r"@(?=[A-Za-z0-9])")


def render(text: str) -> str:
    """Return the text with the few changes that GitHub needs."""
    return map_prose(text, _escape)


def _escape(text: str) -> str:
    parts = _AUTOLINK.split(text)
    return "<".join(_MENTION.sub(ESCAPES["@"], part.replace("<", ESCAPES["<"])) for part in parts)
