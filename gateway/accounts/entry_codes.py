"""One-time codes for the first visit to the console: each gives the gateway's own key once."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path

LIFETIME = 600.0
"""Seconds that a code is valid."""

CODE_BYTES = 20


class EntryCodes:
    """The codes of this process; only their digests are kept, in memory."""

    def __init__(
        self, key_file: Path, *, lifetime: float = LIFETIME, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._key_file = key_file
        self._lifetime = lifetime
        self._clock = clock
        self._valid_until: dict[bytes, float] = {}

    def issue(self) -> str | None:
        """Return a new code; None when the gateway has no key of its own to give."""
        if not self._key_file.is_file():
            return None
        code = secrets.token_urlsafe(CODE_BYTES)
        self._valid_until[_digest(code)] = self._clock() + self._lifetime
        return code

    def redeem(self, code: str) -> str | None:
        """Return the gateway's key for a valid code, which is used up; None for any other code."""
        valid_until = self._valid_until.pop(_digest(code), None)
        if valid_until is None or valid_until <= self._clock():
            return None
        try:
            return self._key_file.read_text().strip() or None
        except OSError:
            return None


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
