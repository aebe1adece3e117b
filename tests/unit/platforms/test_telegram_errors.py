"""The one table from Telegram's refusals to ours."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

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
)
from channels.telegram.errors import MAX_DESCRIPTION_LENGTH, BotApiError, NotSent, translate_error
from channels.telegram.library import NetworkError
from channels.telegram.settings import TelegramSettings


def refusal(status: int, description: str = "", **parameters: Any) -> BotApiError:
    """Return what Telegram answered."""
    return BotApiError(status, {"ok": False, "description": description, "parameters": parameters})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refusal(401, "Unauthorized"), Unauthorized),
        (refusal(404, "Not Found"), Unreachable),
        (refusal(409, "Conflict: terminated by other getUpdates request"), ConnectedElsewhere),
        (refusal(403, "Forbidden: bot was blocked by the user"), Undeliverable),
        (refusal(403, "Forbidden: bot was kicked from the supergroup chat"), Undeliverable),
        (refusal(400, "Bad Request: chat not found"), Undeliverable),
        (refusal(400, "Bad Request: message thread not found"), ThreadUndeliverable),
        (refusal(400, "Bad Request: TOPIC_DELETED"), ThreadUndeliverable),
        (refusal(403, "Forbidden: user is deactivated"), Undeliverable),
        (refusal(403, "Forbidden: bot is not a member of the channel chat"), Undeliverable),
        (refusal(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-100), Undeliverable),
        (refusal(400, "Bad Request: message to edit not found"), Rejected),
        (refusal(400, "Bad Request: message is too long"), Rejected),
        (refusal(400, "Bad Request: message text is empty"), Rejected),
        (refusal(413, "Request Entity Too Large"), Rejected),
        (refusal(429, "Too Many Requests: retry after 3", retry_after=3), RateLimited),
        (refusal(500, "Internal Server Error"), Ambiguous),
        (refusal(502, "Bad Gateway"), Ambiguous),
        (refusal(302), Unreachable),
        (NetworkError("ServerDisconnectedError"), Ambiguous),
    ],
)
def test_each_refusal_has_its_meaning(error: Exception, kind: type[ChannelError]) -> None:
    """The error class decides what happens next, whatever Telegram's text is."""
    assert type(translate_error(error, method="sendMessage")) is kind


@pytest.mark.parametrize(
    ("status", "description", "permission"),
    [
        (400, "Bad Request: not enough rights to send text messages to the chat", "can_send_messages"),
        (400, "Bad Request: not enough rights to send photos to the chat", "can_send_photos"),
        (400, "Bad Request: not enough rights to send voice notes to the chat", "can_send_voice_notes"),
        (
            400,
            "Bad Request: not enough rights to manage pinned messages in the chat",
            "manage pinned messages",
        ),
        (400, "Bad Request: not enough rights", "administrator"),
        (400, "Bad Request: have no rights to send a message", "can_send_messages"),
        (400, "Bad Request: CHAT_WRITE_FORBIDDEN", "can_send_messages"),
        (400, "Bad Request: TOPIC_CLOSED", "can_manage_topics"),
        (400, "Bad Request: need administrator rights in the channel chat", "administrator"),
        (403, "Forbidden: not enough rights to send documents to the chat", "can_send_documents"),
        (403, "Forbidden: ALLOW_PAYMENT_REQUIRED_25", "administrator"),
    ],
)
def test_a_missing_right_is_named(status: int, description: str, permission: str) -> None:
    """The operator gets the missing right; the room is not marked dead."""
    error = translate_error(refusal(status, description), method="sendMessage")
    assert isinstance(error, NotPermitted)
    assert (error.permission, error.remedy) == (permission, "operator")
    assert permission in str(error)


def test_a_long_description_is_cut() -> None:
    """Another server than Telegram can answer with a text of any length."""
    error = refusal(400, "x" * 100_000)
    assert error.description == "x" * MAX_DESCRIPTION_LENGTH
    assert len(str(translate_error(error, method="sendMessage"))) < MAX_DESCRIPTION_LENGTH + 100


def test_a_room_that_moved_names_the_new_one() -> None:
    """If following a moved room fails too, the error has its new id."""
    error = translate_error(
        refusal(400, "Bad Request: upgraded", migrate_to_chat_id=-1007), method="sendMessage"
    )
    assert "-1007" in str(error)


def test_a_404_to_the_first_question_is_a_bad_token() -> None:
    """Telegram answers "not found" both for a malformed token and for an unknown method."""
    assert isinstance(translate_error(refusal(404, "Not Found"), method="getMe"), Unauthorized)


@pytest.mark.parametrize(("given", "seconds"), [(7, 7.0), (None, 5.0), ("soon", 5.0), (-1, 5.0)])
def test_a_rate_limit_without_a_delay_has_one_of_ours(given: object, seconds: float) -> None:
    """An odd answer never turns into a wait of nothing."""
    error = translate_error(refusal(429, "", retry_after=given), method="sendMessage")
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


def test_what_broke_before_the_request_was_not_sent() -> None:
    """A request of which no byte was sent is Unreachable, not Ambiguous."""
    assert type(translate_error(NotSent("broken"), method="sendMessage")) is Unreachable


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"token": ""},
        {"token": "no-colon"},
        {"token": "1:a\nb"},
        {"token": "1:secret-value", "unknown": 1},
        {"token": "1:secret-value", "mode": "webhook"},
        {"token": "1:secret-value", "mode": "webhook", "webhook_secret": "   "},
        {"token": "1:secret-value", "webhook_secret": "ümlaut"},
        {"token": "1:secret-value", "base_url": "ftp://telegram.test"},
        {"token": "1:secret-value", "base_url": "https://name:word@telegram.test"},
        {"token": "1:secret-value", "poll_seconds": 100},
    ],
)
def test_wrong_settings_are_refused_without_telling_secrets(given: dict[str, Any]) -> None:
    """Each mistake is named, and the message contains no value."""
    with pytest.raises(ValidationError) as caught:
        TelegramSettings(**given)
    assert "secret-value" not in str(caught.value)


def test_addresses_of_other_libraries_habits_are_understood() -> None:
    """A trailing slash or `/bot` in base_url is no mistake."""
    settings = TelegramSettings.model_validate(
        {"token": "1:a", "base_url": "http://127.0.0.1:81/bot/", "allow": [7]}
    )
    assert (settings.base_url, settings.file_url) == ("http://127.0.0.1:81", "http://127.0.0.1:81/file")
    assert (settings.allow, settings.bot_id) == (("7",), "1")
