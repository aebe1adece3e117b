"""Keep addresses that stand in a text as they are: `__init__` in one is no bold word."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.rules_inline import StateInline

_REST = re.compile(r"://[!#-;=?-Z\\^_a-~]++")
"""An address behind its scheme: no space, quote, bracket, backtick or letter beyond ASCII."""

_AFTER = "?!.,:;*_~'"
"""Signs at the end that belong to the text around an address, as in GitHub's CommonMark."""


def keep_bare_urls(parser: MarkdownIt) -> MarkdownIt:
    """Add the rule to a parser, and return the parser."""
    parser.inline.ruler.before("escape", "bare_url", _keep)
    return parser


def _keep(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - markdown-it calls it by position
    """Take an address behind its scheme, which is in the text before the position."""
    if not _ends_with_scheme(state.src[max(0, state.pos - 6) : state.pos]):
        return False
    found = _REST.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    rest = _without_end(found[0])
    if not silent:
        state.pending += unescapeAll(rest)
    state.pos += len(rest)
    return True


def _ends_with_scheme(before: str) -> bool:
    for scheme in ("https", "http"):
        if before.lower().endswith(scheme):
            return not before[: -len(scheme)][-1:].isalnum()
    return False


def _without_end(rest: str) -> str:
    """Return the address without the signs behind it, and without a parenthesis that it did not open."""
    shown = rest.rstrip(_AFTER)
    closed = shown.rstrip(")")
    excess = shown.count(")") - shown.count("(")
    kept = shown[: len(shown) - min(len(shown) - len(closed), max(0, excess))]
    return kept.rstrip(_AFTER) if len(kept) > len("://") else rest[: len("://")]
