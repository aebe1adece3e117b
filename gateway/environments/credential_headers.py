"""Make the headers of a credential; access tokens are fetched when they are needed and kept in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from egress.guard import EgressGuard
from egress.policy import refusal
from egress.proxy.signing import OutgoingRequest, SigningFailed
from egress.sessions import open_session
from gateway.records.credentials import BasicLogin, GitHubAppKey, RefreshToken, StaticHeader

MAX_TOKENS = 1000
MAX_ANSWER_BYTES = 64 * 1024
FETCH_SECONDS = 20.0
EARLY_SECONDS = 60.0
"""An access token is replaced so long before its end."""
REFUSED_SECONDS = 60.0
"""The age from which an access token that a host refuses is replaced before its end."""
DEFAULT_LIFETIME, MAX_LIFETIME = 3600.0, 86400.0
_JWT_SECONDS, _JWT_SKEW = 540, 60
_GIT_PATHS = ("/info/refs", "/git-upload-pack", "/git-receive-pack")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """An access token, until when it holds, and the refresh token that replaces the former one, if any."""

    text: str = field(repr=False)
    expires: float
    refresh_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClient:
    """Fetches access tokens at the address that a credential names."""

    guard: EgressGuard

    async def post(
        self, url: str, *, form: Mapping[str, str] | None = None, bearer: str = ""
    ) -> Mapping[str, Any]:
        """Return the answer to a request for a token; raises SigningFailed without the secret in its text."""
        host = URL(url).host
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {bearer}"} if bearer else {})
        timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
        try:
            async with (
                open_session(self.guard, timeout=timeout, force_close=True) as session,
                session.post(url, data=form, headers=headers, allow_redirects=False) as answer,
            ):
                body = _json(await _read(answer))
                if answer.status not in (200, 201) or not isinstance(body, Mapping):
                    reason = body.get("error") if isinstance(body, Mapping) else None
                    shown = f": {str(reason)[:100]}" if reason else ""
                    raise SigningFailed(f"{host} gives no access token (status {answer.status}{shown}).")
                return body
        except aiohttp.ClientError as error:
            refused = refusal(error)
            why = refused.why if refused is not None else type(error).__name__
            raise SigningFailed(f"no access token could be fetched from {host}: {why}.") from error
        except TimeoutError:
            raise SigningFailed(f"no access token could be fetched from {host} in time.") from None


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Return the whole body, or its beginning if it is longer than any answer with a token."""
    content = bytearray()
    while len(content) < MAX_ANSWER_BYTES and (chunk := await answer.content.read(MAX_ANSWER_BYTES)):
        content += chunk
    return bytes(content[:MAX_ANSWER_BYTES])


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


class AccessTokens:
    """The access tokens of this process by credential; one that is fetched is awaited by all who need it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tokens: OrderedDict[str, AccessToken] = OrderedDict()
        self._fetched_at: dict[str, float] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """The locks that are held or awaited; an unused credential has none."""

    def __len__(self) -> int:
        """Return how many tokens and locks are kept in memory."""
        return len(self._tokens.keys() | self._locks.keys())

    async def get(self, key: str, fetch: Callable[[], Any]) -> AccessToken:
        """Return the token of a credential's version, fetched if there is none that holds."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            token = self._tokens.get(key)
            if token is None or token.expires - EARLY_SECONDS < self._clock():
                token = self._tokens[key] = await fetch()
                self._fetched_at[key] = self._clock()
            self._tokens.move_to_end(key)
            while len(self._tokens) > MAX_TOKENS:
                del self._fetched_at[self._tokens.popitem(last=False)[0]]
            return token

    def discard(self, key: str, token: AccessToken) -> None:
        """Drop a token that a host refuses; one that was fetched a short time ago is kept.

        So a host that refuses every request does not cause a fetch for each.
        """
        if self._tokens.get(key) is token and self._clock() - self._fetched_at[key] >= REFUSED_SECONDS:
            del self._tokens[key], self._fetched_at[key]


def static_headers(secret: StaticHeader | BasicLogin) -> Mapping[str, str]:
    """Return the headers of a secret that is sent as it is."""
    if isinstance(secret, StaticHeader):
        return {secret.name: secret.value.get_secret_value()}
    return {"Authorization": basic(secret.username, secret.password.get_secret_value())}


def basic(username: str, password: str) -> str:
    """Return the value of an Authorization header."""
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


def token_headers(
    secret: RefreshToken | GitHubAppKey, token: str, request: OutgoingRequest
) -> Mapping[str, str]:
    """Return the headers of an access token; git's requests to GitHub need it as a password."""
    is_git = isinstance(secret, GitHubAppKey) and request.path.partition("?")[0].endswith(_GIT_PATHS)
    return {"Authorization": basic("x-access-token", token) if is_git else f"Bearer {token}"}


async def fetch_token(secret: RefreshToken | GitHubAppKey, client: TokenClient, now: float) -> AccessToken:
    """Return a new access token; raises SigningFailed."""
    if isinstance(secret, GitHubAppKey):
        url = f"{secret.api_url}/app/installations/{secret.installation_id}/access_tokens"
        body = await client.post(url, bearer=_app_token(secret, now))
        return AccessToken(text=_text(body, "token"), expires=_expiry(body.get("expires_at"), now))
    form = {
        "grant_type": "refresh_token",
        "client_id": secret.client_id,
        "refresh_token": secret.refresh_token.get_secret_value(),
    }
    if secret.client_secret is not None:
        form["client_secret"] = secret.client_secret.get_secret_value()
    if secret.scope is not None:
        form["scope"] = secret.scope
    body = await client.post(secret.token_url, form=form)
    renewed = body.get("refresh_token")
    return AccessToken(
        text=_text(body, "access_token"),
        expires=now + _lifetime(body.get("expires_in")),
        refresh_token=renewed if isinstance(renewed, str) and renewed != form["refresh_token"] else None,
    )


def _app_token(secret: GitHubAppKey, now: float) -> str:
    import jwt  # not at the start: it loads most of `cryptography`

    claims = {"iat": int(now) - _JWT_SKEW, "exp": int(now) + _JWT_SECONDS, "iss": secret.app_id}
    try:
        return jwt.encode(claims, secret.private_key.get_secret_value(), algorithm="RS256")
    except (ValueError, TypeError, jwt.PyJWTError):
        raise SigningFailed("the private key of the GitHub App cannot be used: give it as PEM.") from None


def _text(body: Mapping[str, Any], name: str) -> str:
    found = body.get(name)
    if not isinstance(found, str) or not found or not found.isascii() or not found.isprintable():
        raise SigningFailed(f"the answer with the access token has no usable {name}.")
    return found


def _lifetime(given: Any) -> float:
    """Return seconds within bounds: the number comes from outside."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    return min(max(float(given), 0.0), MAX_LIFETIME) if is_number else DEFAULT_LIFETIME


def _expiry(given: Any, now: float) -> float:
    try:
        seconds = datetime.fromisoformat(str(given)).timestamp() - now
    except (ValueError, OverflowError):
        seconds = DEFAULT_LIFETIME
    return now + _lifetime(seconds)
