"""Translate GitHub's errors into the port's; the only place that knows GitHub's error texts."""

from __future__ import annotations

from http import HTTPStatus

from gidgethub import HTTPException

from channels.errors import Ambiguous, ChannelError, NotPermitted, ThreadUndeliverable
from channels.inbox.errors import rate_limit, status_error

SECONDARY_LIMIT_SECONDS = 60.0
"""GitHub asks for at least a minute where it names no time."""

_REMEDIES = {
    "not accessible by integration": "grant the app {}; accept it where installed",
    "suspended": "unsuspend the app's installation",
    "is locked": "unlock the conversation",
    "archived": "unarchive the repository",
    "": "let the app write in the repository",
}
"""Words of a 403, and what a person must do then; content is refused by a 422."""


def translate_error(error: Exception, *, what: str) -> ChannelError:
    """Return the port's error for an exception of gidgethub."""
    if not isinstance(error, HTTPException):
        return Ambiguous(f"{what}: the response is not GitHub's")
    detail = f"{what}: {error} (HTTP {int(error.status_code)})"
    words, headers = str(error).lower(), error.headers
    limited = rate_limit(error.status_code, headers, SECONDARY_LIMIT_SECONDS, words=words)
    if limited or error.status_code != HTTPStatus.FORBIDDEN:
        return limited or status_error(error.status_code, detail, {HTTPStatus.GONE: ThreadUndeliverable})
    permission = headers.get("X-Accepted-GitHub-Permissions", "") or "write access"
    remedy = next(one for known, one in _REMEDIES.items() if known in words)
    return NotPermitted(permission, f"{detail}: {remedy.format(permission)}")
