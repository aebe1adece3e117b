"""The identity provider: its published metadata and keys, and the exchange of a code for an ID token."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from egress.urls import is_same_origin, origin_of
from gateway.sign_in.errors import SignInFailed, SignInFailure
from gateway.sign_in.fetching import ProviderConnection

METADATA_PATH = "/.well-known/openid-configuration"
METADATA_SECONDS = 3600.0
"""Seconds after which the metadata and the keys are fetched again."""

FAILURE_SECONDS = 2.0
"""Seconds after a failure in which the metadata are not fetched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderMetadata:
    """What the gateway uses of a provider's metadata (OpenID Connect Discovery 1.0, section 3)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str | None
    token_auth_methods: tuple[str, ...]
    sends_issuer: bool
    """Whether answers to the browser have the parameter `iss` (RFC 9207)."""


class IdentityProvider:
    """One provider; metadata and keys are kept for an hour, keys are fetched earlier when one is unknown."""

    def __init__(
        self, connection: ProviderConnection, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._lock = asyncio.Lock()
        self._metadata: tuple[float, ProviderMetadata] | None = None
        self._failure: tuple[float, str] | None = None
        self._keys: tuple[float, Sequence[Mapping[str, Any]]] | None = None

    async def metadata(self) -> ProviderMetadata:
        """Return the provider's metadata; raises SignInFailed."""
        async with self._lock:
            if self._failure is not None and self._failure[0] > self._clock():
                raise SignInFailed("unavailable", self._failure[1])
            if self._metadata is None or self._metadata[0] <= self._clock():
                self._metadata = (self._clock() + METADATA_SECONDS, await self._fetch_metadata())
            return self._metadata[1]

    async def _fetch_metadata(self) -> ProviderMetadata:
        """Fetch the metadata; a failure also counts for those who wait for it."""
        issuer = self._connection.issuer
        try:
            document = await self._connection.get(f"{issuer.rstrip('/')}{METADATA_PATH}")
            return _parse_metadata(document, issuer)
        except SignInFailed as failed:
            self._failure = (self._clock() + FAILURE_SECONDS, str(failed))
            raise

    async def signing_keys(self, *, fresh: bool) -> Sequence[Mapping[str, Any]]:
        """Return the provider's keys as JWKs, fetched now if `fresh`; raises SignInFailed."""
        url = (await self.metadata()).jwks_uri
        async with self._lock:
            if fresh or self._keys is None or self._keys[0] <= self._clock():
                keys = (await self._connection.get(url)).get("keys")
                if not isinstance(keys, list):
                    raise SignInFailed("unavailable", f"{url} has no list of keys")
                found = [key for key in keys if isinstance(key, Mapping)]
                self._keys = (self._clock() + METADATA_SECONDS, found)
            return self._keys[1]

    async def exchange(
        self, code: str, verifier: str, *, client_id: str, client_secret: str | None, redirect_uri: str
    ) -> str:
        """Return the ID token for an authorization code; raises SignInFailed."""
        about = await self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json"}
        if client_secret is not None and "client_secret_basic" in about.token_auth_methods:
            headers["Authorization"] = _basic(client_id, client_secret)
        else:
            form["client_id"] = client_id
            form |= {"client_secret": client_secret} if client_secret is not None else {}
        status, answer = await self._connection.post(about.token_endpoint, form, headers)
        token = answer.get("id_token")
        if status != 200 or not isinstance(token, str):  # noqa: PLR2004 - OK
            reason = str(answer.get("error", "no ID token"))[:100]
            failure: SignInFailure = "unavailable" if status >= 500 else "refused"  # noqa: PLR2004 - the server's fault
            raise SignInFailed(failure, f"the token endpoint answers with status {status}: {reason!r}")
        return token


def _basic(client_id: str, client_secret: str) -> str:
    """Return the header of a client; both parts are form-encoded first (RFC 6749, section 2.3.1)."""
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _parse_metadata(document: Mapping[str, Any], issuer: str) -> ProviderMetadata:
    """Return the metadata of a document; raises SignInFailed for another issuer's or an unusable one."""
    if document.get("issuer") != issuer:
        named = str(document.get("issuer"))[:200]
        raise SignInFailed(
            "unavailable", f"the provider calls itself {named!r}: set oidc.issuer to exactly this"
        )
    methods = document.get("token_endpoint_auth_methods_supported")
    known = methods if isinstance(methods, list) else ["client_secret_basic"]
    return ProviderMetadata(
        authorization_endpoint=_endpoint(document, "authorization_endpoint", issuer),
        token_endpoint=_endpoint(document, "token_endpoint", issuer),
        jwks_uri=_endpoint(document, "jwks_uri", issuer),
        end_session_endpoint=(
            _endpoint(document, "end_session_endpoint", issuer)
            if "end_session_endpoint" in document
            else None
        ),
        token_auth_methods=tuple(method for method in known if isinstance(method, str)),
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _endpoint(document: Mapping[str, Any], name: str, issuer: str) -> str:
    """Return an endpoint: https, or at the issuer itself; raises SignInFailed."""
    url = document.get(name)
    try:
        if isinstance(url, str) and (origin_of(url).scheme == "https" or is_same_origin(url, issuer)):
            return url
    except ValueError:
        pass
    raise SignInFailed("unavailable", f"{name} of the provider is not an https URL")
