"""Verify Slack's requests with the SDK's verifier, over the raw body and before anything is parsed.

Invalid input gives False, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping

from slack_sdk.signature import Clock, SignatureVerifier

MAX_TIMESTAMP_LENGTH = 12


class _FixedClock(Clock):
    """A clock that shows the time of one request."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


def is_signed(secret: str, headers: Mapping[str, str], body: bytes, *, now: float) -> bool:
    """Return whether a request is signed by Slack and at most five minutes old."""
    timestamp = headers.get("x-slack-request-timestamp", "")
    given = headers.get("x-slack-signature", "")
    if not (timestamp.isascii() and timestamp.isdecimal()) or len(timestamp) > MAX_TIMESTAMP_LENGTH:
        return False
    try:
        return SignatureVerifier(secret, _FixedClock(now)).is_valid(body, timestamp, given)
    except (TypeError, ValueError):  # a secret, body or signature that is no text
        return False
