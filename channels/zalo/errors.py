"""Translate Zalo's errors into the port's; the only place that knows Zalo's error codes."""

from __future__ import annotations

from http import HTTPStatus

from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
)
from channels.inbox.calls import HttpResponse
from channels.inbox.errors import rate_limit, status_error

RETRY_SECONDS = 30.0
WINDOW = (
    "Zalo accepts an Official Account's messages for 48 hours after the person's last one (8 of them free): "
    "the person must write again"
)
_BOT: dict[int, type[ChannelError]] = {403: Undeliverable}
_EXPIRED = {-216, -220, -155}
"""The access token is invalid, expired or refused."""

_GONE = {-213, -227}
"""The person does not follow the Official Account, or is banned."""

_WINDOW = {-230, -232, -234, -211, -248}
"""The time in which messages are accepted is over, or its number of messages is used up."""

_LACKS = {-204, -205, -209, -212, -219, -221, -223, -224, -320, -321}
"""The Official Account or its app is disabled, not verified, or has no right to this call."""

_OA: dict[int, type[ChannelError]] = {
    **dict.fromkeys(_EXPIRED, Unauthorized),
    **dict.fromkeys(_GONE, Undeliverable),
}


def bot_error(method: str, response: HttpResponse, code: object, description: str) -> ChannelError:
    """Return the port's error for an answer of the Bot Platform that is not ok."""
    status = code if isinstance(code, int) else response.status
    detail = f"{method}: {description or 'no description'} ({status})"
    limited = rate_limit(status, response.headers, RETRY_SECONDS, scope="room")
    return limited or status_error(status, detail, _BOT)


def oa_error(path: str, response: HttpResponse, code: object, message: str) -> ChannelError:
    """Return the port's error for an answer of the Official Account API, whose status is mostly 200."""
    detail = f"{path}: {message or 'no message'} ({code if isinstance(code, int) else response.status})"
    if response.status == HTTPStatus.TOO_MANY_REQUESTS or code == -32:  # noqa: PLR2004
        return RateLimited(response.retry_after or RETRY_SECONDS, scope="account")
    if not isinstance(code, int) or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    if code in _WINDOW:
        return Undeliverable(f"{detail}: {WINDOW}")
    if code in _LACKS:
        return NotPermitted("OA", f"{detail}: the Official Account or its app may not do this")
    return _OA.get(code, Rejected)(detail)
