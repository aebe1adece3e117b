"""Shell programs that run inside remote instances, for dash, bash and busybox; they are sent as text."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def program(name: str) -> str:
    """Return the text of one of these programs."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
