"""Field types of record configs: names, references, event patterns, webhook secrets."""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, StrictStr

from delivery.deliveries.routes import matches
from delivery.events.event import DELIVERY_EVENTS, TRANSIENT, EventType
from delivery.webhooks.signing import PREFIX, BadSecret, secret_from_text, secret_key
from egress.urls import CallbackUrl

MASK = "***"
"""Replaces a secret in every response; a client that sends it back keeps the stored secret."""

NEVER_SENT = "such events are never sent to webhooks: read them from the event stream"
"""The refusal of an event pattern: a delivery would cause another one, and deltas are only in streams."""

_MIN_BASE64_KEY_BYTES = 16
"""Minimum key bytes for which text that is valid base64 is treated as base64, as the standard's libraries do.
"""


def _plain(text: str) -> str:
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Co", "Cn", "Zl", "Zp") for letter in text):
        raise ValueError("must not contain control characters")
    if "/" in text or text != text.strip():
        raise ValueError("must not contain a slash, or start or end with a space")
    return text


def _event_pattern(text: str) -> str:
    families = {kind.split(".", 1)[0] + ".*" for kind in EventType}
    if text != "*" and text not in families and text not in set(EventType):
        known = ", ".join(["*", *sorted(families), *sorted(EventType)])
        raise ValueError(f"there is no such event; there are {known}")
    return text


def is_sent(pattern: str) -> bool:
    """Return whether an event pattern selects an event that is sent to webhooks."""
    sent = set(EventType) - DELIVERY_EVENTS - TRANSIENT
    return any(matches([pattern], kind) for kind in sent)


def _whsec(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if text == MASK:
        return secret
    if not text.startswith(PREFIX):
        with suppress(BadSecret):
            if len(secret_key(PREFIX + text)) >= _MIN_BASE64_KEY_BYTES:
                return SecretStr(PREFIX + text)
        text = secret_from_text(text)
    try:
        secret_key(text)
    except BadSecret as error:
        raise ValueError(str(error)) from error
    return SecretStr(text)


Name = Annotated[StrictStr, Field(min_length=1, max_length=200), AfterValidator(_plain)]
"""The name of a record; unique within account and kind."""

Reference = Annotated[StrictStr, Field(min_length=1, max_length=200)]
"""The id or name of another record of the same account; stored as the id."""

EventPattern = Annotated[StrictStr, AfterValidator(_event_pattern)]
"""An event's type, a family such as `job.*`, or `*`."""

HookUrl = CallbackUrl
"""Where a webhook is posted to; which networks may be called is decided when it is."""

Whsec = AfterValidator(_whsec)
"""A webhook secret: base64, with or without `whsec_` before it, or plain text, whose bytes are the key."""
