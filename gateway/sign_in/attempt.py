"""One attempt to sign in, bound to the browser that began it by a cookie.

The cookie is `<time>.<random>`. State, nonce and PKCE verifier are derived from it with a key of the gateway,
so that every replica can finish an attempt and none stores it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

PURPOSE = "attempts to sign in"
LIFETIME = 600
"""Seconds that a person may take at the provider."""

_COOKIE = re.compile(r"([0-9]{1,12})\.[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInAttempt:
    """The secrets of one attempt; none of them can be computed from another."""

    cookie: str = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def state(self) -> str:
        """The value that the provider sends back with the browser."""
        return self._derive("state")

    @property
    def nonce(self) -> str:
        """The value that the ID token must have."""
        return self._derive("nonce")

    @property
    def code_verifier(self) -> str:
        """The PKCE verifier, which the token request has (RFC 7636)."""
        return self._derive("verifier")

    @property
    def code_challenge(self) -> str:
        """The PKCE challenge of the method S256."""
        return _encode(hashlib.sha256(self.code_verifier.encode()).digest())

    def _derive(self, purpose: str) -> str:
        return _encode(hmac.digest(self.key, f"{purpose}:{self.cookie}".encode(), hashlib.sha256))


def begin(keys: Sequence[bytes], *, now: float) -> SignInAttempt:
    """Return a new attempt under the first key."""
    return SignInAttempt(cookie=f"{int(now)}.{_encode(secrets.token_bytes(32))}", key=keys[0])


def resume(keys: Sequence[bytes], cookie: str, state: str, *, now: float) -> SignInAttempt | None:
    """Return the attempt of a cookie if the state is its own and it is not too old; else None."""
    found = _COOKIE.fullmatch(cookie)
    if found is None or not 0 <= now - int(found[1]) <= LIFETIME:
        return None
    for key in keys:
        attempt = SignInAttempt(cookie=cookie, key=key)
        if hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "surrogatepass")):
            return attempt
    return None


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
