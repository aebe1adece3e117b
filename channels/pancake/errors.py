"""Translate Pancake's errors into the port's; the only place that knows Pancake's answers."""

from __future__ import annotations

from http import HTTPStatus

from channels.errors import (
    ChannelError,
    NotPermitted,
    Rejected,
    Unauthorized,
    Undeliverable,
)
from channels.inbox.calls import HttpResponse
from channels.inbox.errors import rate_limit, status_error
from channels.inbox.text import clean, mapping

RETRY_SECONDS = 30.0
_TOKEN_CODES = {102, 103, 105, 121}
"""The token is missing, wrong, replaced by a newer one, or of a page without a subscription."""

_TOKEN_WORDS = ("access_token", "access token")
_WINDOW_WORDS = ("outside of allowed window", "24 hour", "24h", "allowed window")
_REPLIED_WORDS = ("#10900", "already replied")


def translate_error(what: str, response: HttpResponse) -> ChannelError:
    """Return the port's error for an answer that is not a success."""
    answer = mapping(response.json)
    words, code = clean(answer.get("message")), answer.get("error_code")
    detail = f"{what}: {words or 'no message'} (HTTP {response.status})"
    status = response.status
    limited = rate_limit(status, response.headers, RETRY_SECONDS, scope="room")
    if limited is not None or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return limited or status_error(status, detail)
    refused = code in _TOKEN_CODES or any(word in words.lower() for word in _TOKEN_WORDS)
    if status == HTTPStatus.UNAUTHORIZED or refused:
        return Unauthorized(f"{detail}: copy the page's token again")
    return _refusal(status, words, detail, is_known="success" in answer)


def _refusal(status: int, words: str, detail: str, *, is_known: bool) -> ChannelError:
    """Distinguish a missing permission, a lost conversation, a closed window and refused content."""
    if status == HTTPStatus.FORBIDDEN:
        return NotPermitted("page", f"{detail}: the token's page may not do this")
    if any(word in words.lower() for word in _WINDOW_WORDS):
        return Undeliverable(f"{detail}: the person must write again before the page may answer")
    if any(word in words.lower() for word in _REPLIED_WORDS):
        remedy = 'the person must answer the first in private, or comment_replies must be "public"'
        return Rejected(f"{detail}: a comment gets one private reply: {remedy}")
    return Rejected(detail) if is_known and status < HTTPStatus.BAD_REQUEST else status_error(status, detail)
