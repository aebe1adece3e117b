"""Render CommonMark for Zalo: plain text, and a picture for a reply that is only an image."""

from __future__ import annotations

import re

from channels.inbox.plain import render

__all__ = ["parse_image", "render"]

_IMAGE = re.compile(r"!\[([^\[\]\n]{0,500})\]\((https?://[^\s()<>]{1,1000})\)")


def parse_image(text: str) -> tuple[str, str] | None:
    """Return the URL and the caption of a text that is one Markdown image."""
    found = _IMAGE.fullmatch(text.strip())
    return (found[2], found[1]) if found else None
