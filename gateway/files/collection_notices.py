"""Notices to people about files that were not sent to them (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from delivery.exhaustion import EXHAUSTED, exhausted_resource
from gateway.store.conversations.files import FileRow

MAX_NAMED_FILES = 5
"""Files named one by one in a notice; the rest are counted."""


def render_rejected(rejected: Sequence[FileRow]) -> str:
    """Return the notice about files that are not sent, each with its reason."""
    listed = _list([f"{_quote(row.path)}: {(row.note or '').partition(': ')[2]}" for row in rejected])
    return f"I could not send these files; they are in the workspace:\n\n{listed}"


def render_delayed(paths: Sequence[str], error: Exception) -> str:
    """Return the notice about files that could not be stored, or read, for one reason, and are sent later."""
    resource = exhausted_resource(error)
    plain = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
    reason = EXHAUSTED[resource] if resource else plain
    listed = _list([_quote(path) for path in paths])
    return f"I could not send these files now ({reason}). They are sent with a later answer:\n\n{listed}"


def _quote(path: str) -> str:
    return f"`{path.replace('`', chr(39))}`"


def _list(lines: Sequence[str]) -> str:
    more = f"\n- and {len(lines) - MAX_NAMED_FILES} more" if len(lines) > MAX_NAMED_FILES else ""
    return "\n".join(f"- {line}" for line in lines[:MAX_NAMED_FILES]) + more
