"""Verify Slack's requests: v0 signatures over the raw body, at most five minutes old.

See Slack's "Verifying requests": the base string is `v0:{timestamp}:{body}`, HMAC-SHA256 with the signing
secret, compared in constant time. Invalid input gives False, never an exception.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

MAX_AGE_SECONDS = 300
MAX_TIMESTAMP_LENGTH = 12


def compute_signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return Slack's signature of a body and timestamp."""
    base = b"v0:" + timestamp.encode("utf-8", "surrogatepass") + b":" + body
    key = secret.encode("utf-8", "surrogatepass")
    return "v0=" + hmac.new(key, base, hashlib.sha256).hexdigest()


def is_signed(secret: str, headers: Mapping[str, str], body: bytes, *, now: float) -> bool:
    """Return whether a request is signed by Slack and recent."""
    timestamp = headers.get("x-slack-request-timestamp", "")
    given = headers.get("x-slack-signature", "")
    if not secret.strip() or len(timestamp) > MAX_TIMESTAMP_LENGTH:
        return False
    if not (timestamp.isascii() and timestamp.isdecimal()) or abs(now - int(timestamp)) > MAX_AGE_SECONDS:
        return False
    expected = compute_signature(secret, timestamp, body)
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
