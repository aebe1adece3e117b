"""What a person's sign-in at an MCP server gave, and the errors of its steps; without the SDK."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

RENEW_BEFORE = 30.0
"""Seconds before its end from which a token is renewed."""


class SignInUnavailable(Exception):
    """A server cannot be reached or answers with a failure; the grant may still be good."""


class GrantRefused(Exception):
    """A server refuses a client, a code or a token: the person has to sign in again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInGrant:
    """The tokens of a person at one address, and what is needed to renew them."""

    address: str
    tokens: Mapping[str, Any] = field(repr=False)
    expires_at: float | None
    client: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, Any]
    resource: Mapping[str, Any]

    @property
    def access_token(self) -> str:
        """The token that requests carry."""
        return str(self.tokens["access_token"])

    def has_token(self, candidate: str) -> bool:
        """Return whether this is the token that requests carry."""
        return hmac.compare_digest(self.access_token.encode(), candidate.encode())

    def needs_renewal(self, now: float) -> bool:
        """Return whether the token has ended, or ends soon."""
        return self.expires_at is not None and now >= self.expires_at - RENEW_BEFORE

    @property
    def is_renewable(self) -> bool:
        """Whether there is a refresh token."""
        return bool(self.tokens.get("refresh_token"))

    def renewed(self, tokens: Mapping[str, Any], *, expires_at: float | None) -> SignInGrant:
        """Return the grant with other tokens."""
        return replace(self, tokens=tokens, expires_at=expires_at)

    @property
    def revocation_endpoint(self) -> str | None:
        """Where the authorization server revokes tokens (RFC 8414); None if it does not."""
        endpoint = self.metadata.get("revocation_endpoint")
        return str(endpoint) if endpoint else None

    def to_text(self) -> str:
        """Return it as a text to encrypt."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> SignInGrant:
        """Return the grant of a text that `to_text` returned."""
        return cls(**json.loads(text))
