"""The steps of a sign-in: send the browser to the provider, check what it brings back, give it a key."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from yarl import URL

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.accounts.api_keys import generate_key, key_digest
from gateway.config.sign_in_settings import OidcSettings, SignInAccess
from gateway.sign_in import access, attempt, id_token
from gateway.sign_in.attempt import SignInAttempt
from gateway.sign_in.errors import SignInFailed
from gateway.sign_in.id_token import UnknownSigningKey
from gateway.sign_in.provider import IdentityProvider
from gateway.store.accounts import accounts as store
from gateway.store.accounts import audit_log, sign_ins
from gateway.store.accounts.accounts import ApiKey
from gateway.store.accounts.audit_log import AuditRow

log = structlog.get_logger(__name__)

CALLBACK_PATH = "/console/oidc/callback"
CODE_SECONDS = 60
"""Seconds within which the browser fetches its key after the sign-in."""

CODE_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """The key of a person who signed in; `expires`: when it ends."""

    key: str = field(repr=False)
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSignIn:
    """Signs people in with one identity provider."""

    settings: OidcSettings
    provider: IdentityProvider
    database: Database
    public_url: str
    keys: Sequence[bytes] = field(repr=False)
    clock: Callable[[], float] = time.time

    @property
    def redirect_uri(self) -> str:
        """The URL to which the provider sends the browser back; it is registered there."""
        return f"{self.public_url}{CALLBACK_PATH}"

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the gateway over TLS."""
        return self.public_url.startswith("https://")

    async def begin(self) -> tuple[SignInAttempt, str]:
        """Return a new attempt and the provider's URL for it; raises SignInFailed."""
        about = await self.provider.metadata()
        begun = attempt.begin(self.keys, now=self.clock())
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self.settings.scope,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": begun.code_challenge,
            "code_challenge_method": "S256",
        }
        return begun, str(URL(about.authorization_endpoint).update_query(parameters))

    async def finish(self, cookie: str, answer: Mapping[str, str], *, address: str) -> str:
        """Return a one-time code for the browser that brings the provider's answer; raises SignInFailed."""
        begun = attempt.resume(self.keys, cookie, answer.get("state", ""), now=self.clock())
        if begun is None and "error" in answer and "state" not in answer:  # some providers leave it out
            raise SignInFailed("denied", f"the provider answers with {answer['error'][:100]!r} and no state")
        if begun is None:
            raise SignInFailed("expired", "the state is not that of a sign-in that this browser began")
        await self._check_sender(answer)
        if "error" in answer:
            raise SignInFailed("denied", f"the provider answers with {answer['error'][:100]!r}")
        token = await self.provider.exchange(
            answer.get("code", ""),
            begun.code_verifier,
            client_id=self._client_id,
            client_secret=self._client_secret,
            redirect_uri=self.redirect_uri,
        )
        claims = await self._verify(token, begun.nonce)
        granted = access.access_of(self.settings, claims)
        if granted is None:
            who, claim = access.shown_name(claims), self.settings.claim
            raise SignInFailed("no-access", f"no [oidc.access] table fits the claim {claim!r} of {who!r}")
        return await self._add_key(claims, granted, address)

    async def redeem(self, code: str) -> SignedIn | None:
        """Return the key for a one-time code; None if the code is unknown, used or too old."""
        now, text = utc_now(), generate_key()
        expires = now + timedelta(seconds=self.settings.session)
        async with self.database.begin() as connection:
            key = await sign_ins.take_over(
                connection, key_digest(code), key_digest(text), now=now, expires=expires
            )
        return SignedIn(key=text, expires=expires) if key is not None else None

    async def end_session_url(self) -> str | None:
        """Return where the browser ends its session at the provider, if the settings want that."""
        if not self.settings.end_provider_session:
            return None
        try:
            url = (await self.provider.metadata()).end_session_endpoint
        except SignInFailed as failed:
            log.warning("sign_in.provider_unavailable", error=str(failed))
            return None
        parameters = {"client_id": self._client_id, "post_logout_redirect_uri": f"{self.public_url}/"}
        return str(URL(url).update_query(parameters)) if url is not None else None

    @property
    def _client_id(self) -> str:
        return self.settings.client_id or ""

    @property
    def _client_secret(self) -> str | None:
        secret = self.settings.client_secret
        return secret.get_secret_value() if secret is not None else None

    async def _check_sender(self, answer: Mapping[str, str]) -> None:
        """Raise SignInFailed for an answer of another provider (RFC 9207)."""
        about = await self.provider.metadata()
        expected = str(self.settings.issuer)
        if answer.get("iss", None if about.sends_issuer else expected) != expected:
            raise SignInFailed("refused", "the answer names another issuer (iss)")

    async def _verify(self, token: str, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token; keys that the provider published since are fetched once."""
        expected = {"issuer": str(self.settings.issuer), "client_id": self._client_id, "nonce": nonce}
        try:
            return id_token.verify(token, await self.provider.signing_keys(fresh=False), **expected)
        except UnknownSigningKey:
            pass
        try:
            return id_token.verify(token, await self.provider.signing_keys(fresh=True), **expected)
        except UnknownSigningKey:
            raise SignInFailed("refused", "no key of the provider fits the ID token's signature") from None

    async def _add_key(self, claims: Mapping[str, Any], granted: SignInAccess, address: str) -> str:
        """Add the key of a person, which a one-time code gives out; raises SignInFailed."""
        now, code = utc_now(), f"dvs_{secrets.token_urlsafe(CODE_BYTES)}"
        who = access.shown_name(claims)
        async with self.database.begin() as connection:
            account = await store.get_account(connection, name=granted.account)
            if account is None:
                raise SignInFailed(
                    "no-access", f"[oidc.access] names the account {granted.account!r}, which is not there"
                )
            key = ApiKey(
                id=new_id("key"),
                account=account.id,
                name=f"sign-in of {who}",
                scopes=granted.scopes,
                created_at=now,
                expires_at=now + timedelta(seconds=CODE_SECONDS),
                subject=claims["sub"],
            )
            await store.add_key(connection, key, key_digest(code))
            entry = AuditRow(
                id=new_id("aud"),
                account=account.id,
                actor=key.id,
                action=f"GET {CALLBACK_PATH}",
                object=who,
                status=302,
                address=address[:80],
                created_at=now,
            )
            await audit_log.record(connection, entry)
        log.info("sign_in.completed", key=key.id, account=account.id, scopes=",".join(granted.scopes))
        return code
