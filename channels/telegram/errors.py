"""Translate Telegram's errors into the port's; the only place that knows Telegram's error texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from channels.errors import (
    Ambiguous,
    ChannelError,
    ConnectedElsewhere,
    NotPermitted,
    RateLimited,
    Rejected,
    ThreadUndeliverable,
    Unauthorized,
    Undeliverable,
    Unreachable,
    parse_wait,
)
from channels.telegram.library import NetworkError, TelegramError
from egress.policy import refusal

_BY_STATUS: dict[int, type[ChannelError]] = {
    400: Rejected,
    401: Unauthorized,
    403: Undeliverable,
    404: Unreachable,
    409: ConnectedElsewhere,
    413: Rejected,
}
_REMEDIES = {401: " (the token was revoked: set the one that @BotFather shows)"}
_DEAD_CHAT = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "deactivated",
    "bot is not a member",
    "group chat was upgraded",
)
"""Texts of a 400 that concern the chat, not the content."""

_DEAD_TOPIC = (
    "message thread not found",
    "topic_deleted",
    "topic_id_invalid",
    "message to be replied not found",
    "replied message not found",
)
"""Texts of a 400 that concern a topic of the chat, or the post that its comments reply to."""

_RIGHTS = (
    ("topic_closed", "can_manage_topics"),
    ("chat_send_plain_forbidden", "can_send_messages"),
    ("chat_send_photos_forbidden", "can_send_photos"),
    ("chat_send_docs_forbidden", "can_send_documents"),
    ("chat_send_audios_forbidden", "can_send_audios"),
    ("chat_send_videos_forbidden", "can_send_videos"),
    ("chat_send_voices_forbidden", "can_send_voice_notes"),
    ("chat_send_gifs_forbidden", "can_send_other_messages"),
    ("chat_send_media_forbidden", "can_send_documents"),
    ("chat_write_forbidden", "can_send_messages"),
    ("chat_restricted", "can_send_messages"),
    ("have no rights to send a message", "can_send_messages"),
    ("chat_admin_required", "administrator"),
    ("allow_payment_required", "administrator"),  # of a group that charges Stars for messages of others
    ("need administrator rights", "administrator"),
    ("not enough rights", "administrator"),
)
"""Texts of a refusal for a missing right, and the right's name in ChatPermissions."""

_MISSING_RIGHT = re.compile(r"not enough rights to ([\w ]{1,100}?)(?: (?:to|in|from) the \w{1,50}+)?$")
_SEND_RIGHTS = {
    "send text messages": "can_send_messages",
    "send photos": "can_send_photos",
    "send documents": "can_send_documents",
    "send videos": "can_send_videos",
    "send music": "can_send_audios",
    "send audios": "can_send_audios",
    "send voice notes": "can_send_voice_notes",
    "send animations": "can_send_other_messages",
}


DEFAULT_WAIT_SECONDS = 5.0
"""The wait after a 429 that names none."""

MAX_DESCRIPTION_LENGTH = 500
"""A longer description is cut: Telegram's are sentences, but `base_url` can name another server."""


class BotApiError(TelegramError):
    """Telegram refused the call."""

    __slots__ = ("description", "migrated_to", "retry_after", "status")

    def __init__(self, status: int, answer: Mapping[str, Any]) -> None:
        self.description = str(answer.get("description") or f"HTTP {status}")[:MAX_DESCRIPTION_LENGTH]
        super().__init__(self.description)
        parameters = answer.get("parameters")
        parameters = parameters if isinstance(parameters, dict) else {}
        self.status = status
        self.migrated_to: object = parameters.get("migrate_to_chat_id")
        self.retry_after = parse_wait(parameters.get("retry_after")) or DEFAULT_WAIT_SECONDS


class NotSent(NetworkError):
    """The request failed before its first byte was sent."""

    __slots__ = ()


def translate_error(error: Exception, *, method: str) -> ChannelError:
    """Return the port's error for an exception that a call raised."""
    if not isinstance(error, BotApiError):
        kind = Unreachable if isinstance(error, NotSent) else Ambiguous
        refused = refusal(error)
        return kind(f"{method}: {refused.why if refused else type(error.__cause__ or error).__name__}")
    detail = f"{method}: {error.description}{_REMEDIES.get(error.status, '')}"
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return RateLimited(error.retry_after)
    if error.status == HTTPStatus.NOT_FOUND and method == "getMe":
        return Unauthorized(f"{detail} (check that token is complete and base_url is correct)")
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    if error.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN}:
        return _translate_refusal(error, detail)
    return _BY_STATUS.get(error.status, Unreachable)(detail)


def _translate_refusal(error: BotApiError, detail: str) -> ChannelError:
    """Distinguish refused content, a dead chat and a missing right."""
    words = detail.lower()
    permission = _missing_permission(words)
    if permission is not None:
        return NotPermitted(permission, f"{detail}: grant the bot the right {permission} in this chat")
    if error.migrated_to is not None:
        return Undeliverable(f"{detail} (now {error.migrated_to})")
    if any(known in words for known in _DEAD_TOPIC):
        return ThreadUndeliverable(detail)
    if any(known in words for known in _DEAD_CHAT):
        return Undeliverable(detail)
    return _BY_STATUS[error.status](detail)


def _missing_permission(words: str) -> str | None:
    lacking = _MISSING_RIGHT.search(words)
    if lacking:
        return _SEND_RIGHTS.get(lacking[1], lacking[1])
    return next((right for known, right in _RIGHTS if known in words), None)


def is_unknown_method(error: ChannelError) -> bool:
    """Return whether the server lacks the method: it answers 404, as for an invalid token."""
    return isinstance(error.__cause__, BotApiError) and error.__cause__.status == HTTPStatus.NOT_FOUND


MARKUP_ERRORS = ("parse entities", "entity", "entities")
"""Texts of a refusal that concerns a text's formatting."""


def is_about_markup(error: Rejected) -> bool:
    """Return whether Telegram would accept the text without its entities."""
    return any(words in str(error).lower() for words in MARKUP_ERRORS)
