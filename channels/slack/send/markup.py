"""Render CommonMark as Slack's mrkdwn; everything else is escaped, so that no text can mention anyone.

The rules are in Slack's "Formatting text for app surfaces": `&`, `<` and `>` are entities, links are
`<url|text>`, code has no language, and a list is plain lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from channels.commonmark.markup import (
    Block,
    CodeSpan,
    Fence,
    Heading,
    Inline,
    InlineImage,
    Link,
    ListBlock,
    Paragraph,
    Quote,
    StyledText,
    Table,
    Text,
    ThematicBreak,
    parse,
)

RULE = "———"
_STYLES = {"strong": "*", "emphasis": "_", "strike": "~"}
_ENTITY_START = re.compile(r"&(?=#?\w{1,32};)")
_SCHEMES = {"http", "https", "mailto"}


def escape(text: str) -> str:
    """Return the text with every reference escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_markdown(text: str) -> str:
    """Return CommonMark in which nothing is a reference: `<` is escaped, and `&` where an entity begins.

    Any other `&` stays, because Slack shows an escaped one in the URL of a link.
    """
    return _ENTITY_START.sub("&amp;", text).replace("<", "&lt;")


def render(markdown: str) -> str:
    """Return the text as mrkdwn; text that would render to nothing is only escaped."""
    text = _blocks(parse(markdown), "").strip()
    return text or escape(markdown)


def _blocks(blocks: Iterable[Block], indent: str) -> str:
    parts: list[str] = []
    for number, block in enumerate(blocks):
        if number:
            parts.append(("\n\n" if block.gap else "\n") + indent)
        parts.append(_block(block, indent))
    return "".join(parts)


def _block(block: Block, indent: str) -> str:
    match block:
        case Paragraph(children=children):
            text = _inlines(children, indent)
        case Heading(children=children):
            text = _styled("*", _inlines(children, indent, without_bold=True))
        case Quote(children=children):
            text = "\n".join("> " + line for line in _blocks(children, "").split("\n"))
        case ListBlock():
            text = _list_block(block, indent)
        case Fence():
            text = _fence(block)
        case Table(text=source):
            text = _fenced(source)
        case ThematicBreak():
            text = RULE
    return text


def _fence(block: Fence) -> str:
    """Render code; the info string's rest goes above it, because Slack has no language."""
    language, _, rest = block.info.partition(" ")
    head = f"{escape(rest.strip())}\n" if rest.strip() else ""
    return head + _fenced(block.text if block.text.strip() else f"{language}{block.text}")


def _fenced(text: str) -> str:
    """Fence code; zero-width spaces keep a fence inside it from closing."""
    inner = escape(text).replace("```", "`\u200b`\u200b`")
    return f"```\n{inner}\n```"


def _list_block(block: ListBlock, indent: str) -> str:
    parts: list[str] = []
    for number, item in enumerate(block.items):
        if number:
            parts.append(("\n\n" if block.loose and item and item[0].gap else "\n") + indent)
        parts.append("• " if block.start is None else f"{block.start + number}. ")
        parts.append(_blocks(item, indent + "  "))
    return "".join(parts)


def _inlines(children: Sequence[Inline], indent: str, *, without_bold: bool = False) -> str:
    """Render inline content; `without_bold` omits bold in text that is bold already."""
    return "".join(_inline(child, indent, without_bold=without_bold) for child in children)


def _inline(child: Inline, indent: str, *, without_bold: bool) -> str:
    match child:
        case Text(text):
            return escape(text).replace("\n", "\n" + indent)
        case CodeSpan(text):
            return f"`{escape(text)}`" if text.strip() and "`" not in text else escape(text)
        case StyledText(style, inner):
            words = _inlines(inner, indent, without_bold=without_bold or style == "strong")
            return words if without_bold and style == "strong" else _styled(_STYLES[style], words)
        case Link(url, inner):
            return _link(url, _inlines(inner, indent, without_bold=True))
        case InlineImage(url, alt):
            return _link(url, escape(alt))


def _styled(mark: str, words: str) -> str:
    """Put marks around text, inside its outer white space, so that Slack recognises them."""
    inner = words.strip()
    if not inner or "\n" in inner:
        return words
    start = words.index(inner)
    return f"{words[:start]}{mark}{inner}{mark}{words[start + len(inner) :]}"


def _link(url: str, words: str) -> str:
    """Render a link to an absolute URL; write out any other URL."""
    if not _is_absolute(url):
        return f"{words} ({escape(url)})" if url and words and words != escape(url) else words or escape(url)
    target = escape(url).replace("|", "%7C").replace("&lt;", "%3C").replace("&gt;", "%3E")
    label = words.replace("|", "¦").replace("\n", " ")
    return f"<{target}|{label}>" if label and "<" not in label and words != escape(url) else f"<{target}>"


def _is_absolute(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in _SCHEMES and bool(parts.netloc or parts.path) and not any(map(str.isspace, url))
