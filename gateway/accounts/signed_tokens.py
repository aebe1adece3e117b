"""Texts that say something and prove that this gateway said it: `<payload>.<signature>`, both base64url.

The payload is a JSON array. Comparisons take constant time.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

MAX_LENGTH = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTokens:
    """Signs and verifies texts. The first of `keys` signs, all of them verify (keys rotate)."""

    keys: Sequence[bytes] = field(repr=False)

    def sign(self, values: Sequence[str | int]) -> str:
        """Return the text of an array."""
        payload = json.dumps(values, separators=(",", ":")).encode()
        return f"{_encode(payload)}.{_encode(_signature(self.keys[0], payload))}"

    def verify(self, text: str, *, count: int) -> Sequence[Any] | None:
        """Return the array of a signed text if it has so many values, else None."""
        payload, signature = (_decode(part) for part in _halves(text))
        fits = [hmac.compare_digest(_signature(key, payload), signature) for key in self.keys]
        if not any(fits):
            return None
        values = json.loads(payload)
        return values if isinstance(values, list) and len(values) == count else None


def _signature(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, payload, sha256)


def _halves(text: str) -> tuple[str, str]:
    payload, _, signature = text.partition(".") if len(text) <= MAX_LENGTH else ("", "", "")
    return payload, signature


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Return the bytes of canonical base64url; nothing for any other text."""
    try:
        raw = base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}")
    except (ValueError, binascii.Error):
        return b""
    return raw if _encode(raw) == text else b""
