"""Verify webhooks of a gateway (Standard Webhooks) and read their events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from delivery.webhooks.signing import TOLERANCE, BadSignature, verify
from dovecote.client.answers import ConversationEvent
from dovecote.client.errors import DovecoteError


class InvalidWebhook(DovecoteError):
    """The request was not signed with the secret, is too old, or is no event: answer it with 400."""


def verify_webhook(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: int = TOLERANCE,
    now: datetime | None = None,
) -> ConversationEvent:
    """Return the event of a webhook's request; raises InvalidWebhook, and BadSecret for a wrong secret.

    `body` is what was received, byte by byte. Names of headers may have any case. The header `webhook-id`
    is the same when a webhook is repeated: remember it to act once.
    """
    secrets = [secret] if isinstance(secret, str) else list(secret)
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        verify(secrets, lower, body, now=now or datetime.now(UTC), tolerance=tolerance)
    except BadSignature as error:
        raise InvalidWebhook(str(error)) from error
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise InvalidWebhook("the body is not JSON") from error
    if not isinstance(fields, dict):
        raise InvalidWebhook("the body is no event")
    return ConversationEvent.from_fields(fields)
