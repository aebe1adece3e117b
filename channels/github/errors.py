"""Translate GitHub's errors into the port's; the only place that knows GitHub's error texts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from gidgethub import GitHubException, HTTPException

from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)

SECONDARY_LIMIT_SECONDS = 60.0
"""GitHub asks for at least a minute where it names no time."""

PERMISSIONS_HEADER = "x-accepted-github-permissions"


def translate_error(error: GitHubException, *, what: str) -> ChannelError:
    """Return the port's error for an exception of gidgethub."""
    if not isinstance(error, HTTPException):
        return Ambiguous(f"{what}: the response is not GitHub's")
    status, detail = int(error.status_code), f"{what}: {error} (HTTP {int(error.status_code)})"
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}:
        return _rate_limit(error) or _refusal(error, detail)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return Unauthorized(detail)
        case HTTPStatus.NOT_FOUND:
            return Undeliverable(detail)
    return Unreachable(detail) if status < HTTPStatus.BAD_REQUEST else Rejected(detail)


def _rate_limit(error: HTTPException) -> RateLimited | None:
    """Return the limit that was exceeded: primary (a reset time) or secondary (Retry-After, or a text)."""
    headers = error.headers
    if (seconds := _number(headers, "retry-after")) is not None:
        return RateLimited(max(1.0, seconds), scope="account")
    if headers.get("x-ratelimit-remaining") == "0":
        reset = _number(headers, "x-ratelimit-reset")
        wait = SECONDARY_LIMIT_SECONDS if reset is None else reset - time.time()
        return RateLimited(max(1.0, wait), scope="account")
    limited = "rate limit" in str(error).lower() or error.status_code == HTTPStatus.TOO_MANY_REQUESTS
    return RateLimited(SECONDARY_LIMIT_SECONDS, scope="account") if limited else None


def _refusal(error: HTTPException, detail: str) -> ChannelError:
    """Distinguish a missing permission, a suspended installation and a locked thread."""
    words = str(error).lower()
    if "not accessible by integration" in words:
        permission = error.headers.get(PERMISSIONS_HEADER, "") or "write access"
        return NotPermitted(
            permission, f"{detail}: grant the app {permission}, and accept it where installed"
        )
    if "suspended" in words:
        return NotPermitted("installation", f"{detail}: unsuspend the app's installation")
    return Rejected(detail)


def _number(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name, "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else None  # noqa: PLR2004


def graphql_error(answer: Mapping[str, Any], *, what: str) -> ChannelError:
    """Return the port's error for a GraphQL answer, whose errors come with the status 200."""
    errors = answer.get("errors")
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    kind, detail = first.get("type"), f"{what}: {first.get('message') or 'no data'}"
    match kind:
        case "RATE_LIMITED":
            return RateLimited(SECONDARY_LIMIT_SECONDS, scope="account")
        case "FORBIDDEN":
            return NotPermitted("discussions=write", f"{detail}: grant the app Discussions: write")
        case _:
            return Rejected(detail) if kind else Ambiguous(detail)
