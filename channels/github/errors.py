"""Translate GitHub's errors into the port's; the only place that knows GitHub's error texts."""

from __future__ import annotations

from http import HTTPStatus

from gidgethub import HTTPException

from channels.errors import Ambiguous, ChannelError, NotPermitted, Rejected
from channels.inbox.errors import rate_limit, status_error

SECONDARY_LIMIT_SECONDS = 60.0
"""GitHub asks for at least a minute where it names no time."""


def translate_error(error: Exception, *, what: str) -> ChannelError:
    """Return the port's error for an exception of gidgethub."""
    if not isinstance(error, HTTPException):
        return Ambiguous(f"{what}: the response is not GitHub's")
    detail = f"{what}: {error} (HTTP {int(error.status_code)})"
    words, headers = str(error).lower(), error.headers
    limited = rate_limit(error.status_code, headers, SECONDARY_LIMIT_SECONDS, words=words)
    if limited or error.status_code != HTTPStatus.FORBIDDEN:
        return limited or status_error(error.status_code, detail)
    return _refusal(words, headers.get("X-Accepted-GitHub-Permissions", "") or "write access", detail)


def _refusal(words: str, permission: str, detail: str) -> ChannelError:
    """Distinguish a missing permission, a suspended installation and a locked thread."""
    if "not accessible by integration" in words:
        return NotPermitted(permission, f"{detail}: grant the app {permission}; accept it where installed")
    if "suspended" in words:
        return NotPermitted("installation", f"{detail}: unsuspend the app's installation")
    if "is locked" in words:
        return NotPermitted("conversation", f"{detail}: unlock the conversation")
    return Rejected(detail)
