"""Verify the signatures of posted requests; every comparison takes constant time."""

from __future__ import annotations

import hashlib
import hmac


def hmac_sha256(secret: str, body: bytes) -> str:
    """Return the HMAC-SHA256 of a body as hexadecimal digits."""
    return hmac.new(secret.encode("utf-8", "surrogatepass"), body, hashlib.sha256).hexdigest()


def is_equal(given: str, expected: str) -> bool:
    """Compare two secrets in constant time; an empty one never equals anything."""
    pair = (given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass"))
    return bool(expected) and hmac.compare_digest(*pair)
