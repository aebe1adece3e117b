"""Verify the signatures of posted requests; every comparison takes constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from pydantic import SecretStr


def hmac_sha256(secret: str, body: bytes) -> str:
    """Return the HMAC-SHA256 of a body as hexadecimal digits."""
    return hmac.new(secret.encode("utf-8", "surrogatepass"), body, hashlib.sha256).hexdigest()


def is_hmac(
    secret: SecretStr | None, headers: Mapping[str, str], body: bytes, *, header: str, prefix: str
) -> bool:
    """Return whether a header holds a prefix and the HMAC-SHA256 of a body; without a secret none does."""
    if secret is None:
        return False
    return is_equal(headers.get(header, ""), f"{prefix}{hmac_sha256(secret.get_secret_value(), body)}")


def is_equal(given: str, expected: str) -> bool:
    """Compare two secrets in constant time; an empty one never equals anything."""
    pair = (given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass"))
    return bool(expected) and hmac.compare_digest(*pair)
