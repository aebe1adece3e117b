"""Translate Discord's errors into the port's; the only place that knows Discord's error codes.

Discord does not say which permission is missing (50013 is the same for all), so the caller names the
permission that its call requires.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    ThreadUndeliverable,
    Unauthorized,
    Undeliverable,
    Unreachable,
    parse_wait,
)
from channels.inbox.calls import parse_json
from channels.inbox.text import mapping

DEFAULT_WAIT = 5.0
VIEW = "View Channels"
TOO_MANY_EDITS = 30046
"""Too many edits of a message that is older than an hour: sent as a 429, but no wait helps this message."""


class UnknownResource(Unreachable):
    """The path does not exist, and Discord's error code does not say what is missing."""


class AlreadyAcknowledged(Rejected):
    """The interaction already has an initial response."""


class MissingAccess(NotPermitted):
    """The bot cannot see the channel: a permission is missing, or the bot was removed."""


class ArchivedThread(ThreadUndeliverable):
    """The thread is archived: a new message opens it, an edit does not."""


# Refusals that pass, whatever their status: slow mode and limits of writes (20xxx), too many private chats,
# disabled for now, refused by Discord's proxy, not ready, overloaded.
_TEMPORARY = 20016, 20022, 20028, 20029, 40003, 40004, 40006, 40333, 110001, 130000

_BY_CODE: Mapping[int, type[ChannelError]] = {
    **dict.fromkeys(_TEMPORARY, Unreachable),
    10003: Undeliverable,  # unknown channel
    10004: Undeliverable,  # unknown guild
    10008: Rejected,  # unknown message
    10013: Undeliverable,  # unknown user
    10014: Rejected,  # unknown emoji
    10015: Rejected,  # unknown webhook: an interaction's token that has ended
    10062: Rejected,  # unknown interaction
    20009: Rejected,  # explicit content
    TOO_MANY_EDITS: Rejected,
    40005: Rejected,  # too large
    40060: AlreadyAcknowledged,
    40058: ThreadUndeliverable,  # a forum, where only its posts have messages
    50007: Undeliverable,  # cannot send messages to this user
    50008: Undeliverable,  # a channel without messages
    50024: Undeliverable,  # a channel of another kind
    50027: Rejected,  # invalid webhook token
    50083: ArchivedThread,
    50278: Undeliverable,  # no mutual server
    200000: Rejected,  # blocked by AutoMod
    240000: Rejected,  # a harmful link
}
_BY_PERMISSION: Mapping[int, str] = {
    50001: VIEW,  # missing access
    50009: VIEW,  # the channel's verification level is too high
    160002: "Read Message History",  # cannot reply without it
    160005: "Manage Threads",  # thread is locked
}
MISSING_PERMISSIONS, MISSING_ACCESS = 50013, 50001
_REMEDIES = {
    VIEW: "allow the bot's role to see the channel",
    "Manage Threads": "unlock the thread, or grant it",
}
_BY_STATUS: Mapping[int, type[ChannelError]] = {
    400: Rejected,
    401: Unauthorized,
    403: Rejected,  # of the codes above, each that means the room is gone says so
    404: UnknownResource,
    405: UnknownResource,
    413: Rejected,
}


def translate_error(
    status: int, headers: Mapping[str, str], body: bytes, *, name: str, needs: str = ""
) -> ChannelError:
    """Return the port's error for a failed response; `needs` is the permission the call requires."""
    answer = parse_object(body)
    code = answer.get("code")
    code = code if isinstance(code, int) else 0
    detail = f"{name}: {describe(status, code, answer)}"
    if status == HTTPStatus.TOO_MANY_REQUESTS and code != TOO_MANY_EDITS:
        return _rate_limited(headers, answer)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    permission = needs if code == MISSING_PERMISSIONS else _BY_PERMISSION.get(code, "")
    if permission:
        return _not_permitted(code, permission, detail)
    return _by_code(status, code, detail, is_empty=not answer)


def _by_code(status: int, code: int, detail: str, *, is_empty: bool) -> ChannelError:
    if code in _BY_CODE:
        return _BY_CODE[code](detail)
    if status == HTTPStatus.FORBIDDEN and is_empty:
        return Unreachable(f"{detail} (from a proxy, not from Discord's API)")
    return _BY_STATUS.get(status, Unreachable)(detail)


def _not_permitted(code: int, permission: str, detail: str) -> NotPermitted:
    remedy = _REMEDIES.get(permission, "grant it to the bot's role, in the server or in this channel")
    kind = MissingAccess if code == MISSING_ACCESS else NotPermitted
    return kind(permission, f"{detail}: the bot lacks the permission {permission!r} here; {remedy}")


def describe(status: int, code: int, answer: Mapping[str, Any]) -> str:
    """Return Discord's error message in short form."""
    words = str(answer.get("message") or f"HTTP {status}")[:200]
    errors = answer.get("errors")
    found = f" {json.dumps(errors)[:300]}" if errors else ""
    return f"{words} ({code}){found}" if code else f"{words}{found}"


def _rate_limited(headers: Mapping[str, str], answer: Mapping[str, Any]) -> RateLimited:
    """Return a RateLimited; a response without JSON comes from the proxy and limits the whole account."""
    wait = parse_wait(answer.get("retry_after")) or parse_wait(headers.get("Retry-After")) or DEFAULT_WAIT
    is_global = answer.get("global") is True or "X-RateLimit-Global" in headers
    everywhere = is_global or headers.get("X-RateLimit-Scope") == "global"
    return RateLimited(wait, scope="account" if everywhere or not answer else "room")


def parse_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body, or an empty one."""
    return mapping(parse_json(body))
