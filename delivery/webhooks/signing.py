"""Sign and verify webhooks by the Standard Webhooks specification.

The signed content is `<id>.<timestamp>.<body>`. A signature is `v1,` and the base64 of its HMAC-SHA256. The
header has one signature for every valid secret, separated by spaces, so that a receiver can rotate its secret
without losing a message.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets as randomness
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256

PREFIX = "whsec_"
TOLERANCE = 300
"""Seconds by which a timestamp may differ from the receiver's clock."""

_LENGTHS = range(8, 129)
_MAX_TIMESTAMP_DIGITS = 12
"""The digits of a timestamp until the year 33658."""


class BadSecret(ValueError):
    """A webhook secret is `whsec_` followed by the base64 of 8 to 128 bytes, or plain text of that length."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


_MALFORMED = "the webhook headers are missing or malformed"


class BadSignature(ValueError):
    """No secret has signed the message, or its timestamp is out of tolerance."""


class BadTimestamp(BadSignature):
    """The timestamp is out of tolerance; whether a secret has signed the message was not checked."""


def new_secret() -> str:
    """Return a new secret of 32 random bytes."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def secret_from_text(text: str) -> str:
    """Return the secret whose key is the bytes of a plain text; a blank text gives an invalid secret."""
    return PREFIX + base64.b64encode(text.encode() if text.strip() else b"").decode()


def secret_key(secret: str) -> bytes:
    """Return the key bytes of a secret; raises BadSecret, whose text does not contain the secret."""
    if not secret.startswith(PREFIX):
        raise BadSecret
    text = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadSecret from None
    if len(key) not in _LENGTHS:
        raise BadSecret
    return key


def sign(secrets: Sequence[str], *, message_id: str, moment: datetime, body: bytes) -> dict[str, str]:
    """Return the three headers of a message; one signature for every secret, in their order."""
    timestamp = str(int(moment.timestamp()))
    signatures = [_signature(secret_key(secret), message_id, timestamp, body) for secret in secrets]
    if not signatures:
        raise BadSecret
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signatures),
    }


def verify(
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: datetime,
    tolerance: int = TOLERANCE,
) -> None:
    """Raise BadSignature unless one of the secrets signed exactly this message within `tolerance` seconds.

    `headers` has lower-case names. The comparisons take constant time. Raises BadTimestamp first, for any
    secret.
    """
    check_timestamp(headers, now=now, tolerance=tolerance)
    message_id, timestamp, given = (
        headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")
    )
    if not (message_id and given):
        raise BadSignature(_MALFORMED)
    expected = [_signature(secret_key(secret), message_id, timestamp, body).encode() for secret in secrets]
    offered = [signature.encode(errors="replace") for signature in given.split(" ")]
    matches = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in offered]
    if not any(matches):
        raise BadSignature("no signature matches")


def check_timestamp(headers: Mapping[str, str], *, now: datetime, tolerance: int = TOLERANCE) -> None:
    """Raise BadTimestamp if a message's timestamp is out of tolerance, BadSignature if it is malformed."""
    timestamp = headers.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit()) or len(timestamp) > _MAX_TIMESTAMP_DIGITS:
        raise BadSignature(_MALFORMED)
    ahead = int(timestamp) - int(now.timestamp())
    if abs(ahead) > tolerance:
        where = f"{abs(ahead)} seconds {'ahead of' if ahead > 0 else 'behind'} the receiver's clock"
        raise BadTimestamp(f"webhook-timestamp is {where}, more than {tolerance}: correct the sender's clock")


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = f"{message_id}.{timestamp}.".encode("utf-8", "surrogatepass") + body
    return "v1," + base64.b64encode(hmac.digest(key, content, sha256)).decode()
