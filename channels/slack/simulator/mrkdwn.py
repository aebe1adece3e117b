"""Read mrkdwn and Markdown as Slack's clients do, after "Formatting text for app surfaces"."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_REFERENCE = re.compile(r"<([^<>\n]+)>")
_MARKS = [
    re.compile(rf"(?<![\w{mark}]){mark}(\S|\S[^\n]*?\S){mark}(?!\w)") for mark in (r"\*", "_", "~", "`")
]


def notified_targets(text: str) -> list[str]:
    """Return the users and groups that a text notifies."""
    return [found for found in _REFERENCE.findall(text) if found.startswith(("@", "!"))]


def render(text: str) -> str:
    """Return the text of mrkdwn as a user reads it."""
    pieces = text.split("```")
    return "".join(unescape(piece) if number % 2 else _inline(piece) for number, piece in enumerate(pieces))


def unescape(text: str) -> str:
    """Return the text with its three entities as characters."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def render_markdown(text: str) -> str:
    """Return the text of CommonMark with tables as a user reads it, after "Markdown block"."""
    return "\n\n".join(filter(None, map(_token_text, _MARKDOWN.parse(text))))


def _token_text(token: Token) -> str:
    if token.type == "inline":
        return "".join(_token_text(child) for child in token.children or ())
    if token.type in {"softbreak", "hardbreak"}:
        return "\n"
    return unescape(token.content).rstrip("\n")


def _inline(text: str) -> str:
    for mark in _MARKS:
        text = mark.sub(r"\1", text)
    return unescape(_REFERENCE.sub(lambda found: found[1].rpartition("|")[2], text))
