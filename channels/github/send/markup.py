"""Render CommonMark for GitHub, which shows it as it is, except for HTML and mentions.

`<` outside of code is escaped, because GitHub removes tags that it does not know. A mention would notify a
person, so a space of no width follows its `@`, and entities for `@` are written out. GitHub finds no mentions
in URLs and in addresses of mail, which a space would break.
"""

from __future__ import annotations

import re

from channels.github.threads import ESCAPES
from channels.inbox.code import map_prose

_ESCAPED = re.compile(  # a URL, which is kept, or what is escaped
    r"(<https?://[^\s<>]{1,2000}>|(?<![^\s*_~(])https?://[a-zA-Z0-9-]{1,63}(?:\.[a-zA-Z0-9-]{1,63}){1,9}"
    r"(?::[0-9]{1,5})?/[^\s<>()\[\]\"'`|*\\]{0,2000})|<|(?<![a-zA-Z0-9_])@(?=[a-zA-Z0-9&])"
    r"|&(?=#0{0,7}64;|#[xX]0{0,6}40;|commat;)"
)


def render(text: str) -> str:
    """Return the text with the few changes that GitHub needs."""
    return map_prose(text, lambda one: _ESCAPED.sub(lambda found: found[1] or ESCAPES[found[0]], one))
