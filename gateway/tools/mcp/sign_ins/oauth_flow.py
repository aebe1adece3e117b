"""OAuth 2.1 of MCP servers, by the official client: discovery, registration, codes and tokens.

Importing this module loads the SDK, as `http_server.py` does. The client authenticates one request to the
server, which leads it through RFC 9728 (metadata of the resource), RFC 8414 (metadata of the authorization
server), RFC 7591 (registration), RFC 7636 (PKCE) and RFC 8707 (resource indicators). It stores nothing here:
what a later step needs is in a `SignInGrant`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.client.auth import OAuthClientProvider, OAuthFlowError, TokenStorage
from mcp.client.auth.utils import validate_authorization_response_iss
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import Field, ValidationError
from yarl import URL

from egress.guard import EgressGuard
from egress.httpx2_client import open_httpx2_client, post_json
from egress.policy import EgressPolicy
from egress.urls import origin_of
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.sign_in.attempt import SignInAttempt
from gateway.tools.mcp.server import CLIENT_NAME, CLIENT_VERSION
from gateway.tools.mcp.sign_ins.grant import GrantRefused, SignInGrant, SignInUnavailable

CLIENT_TITLE = "Dovecote"
PROTOCOL_VERSION = "2025-06-18"
FLOW_SECONDS = 30.0
"""Seconds for all requests of one step of a sign-in."""

MAX_BYTES = 256 * 1024
_HTTPS_ONLY = frozenset({("https", 443)})
_EXPIRED = 1.0
"""A time of expiry in the past, so that the client renews the token first."""

_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": CLIENT_NAME, "version": CLIENT_VERSION},
    },
}
_HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": PROTOCOL_VERSION}


@dataclass(kw_only=True)
class _MemoryStorage(TokenStorage):
    """What the client stores during one step."""

    client: OAuthClientInformationFull | None = None
    tokens: OAuthToken | None = None
    is_renewed: bool = field(default=False, init=False)

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new tokens."""
        self.tokens, self.is_renewed = tokens, True

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registered client."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the client that was registered."""
        self.client = client_info


class _ClientMetadata(OAuthClientMetadata):
    """What the gateway registers: the scope is that of the settings, or else the server's usual one and more.

    The client sets the scope after it has read the server's metadata, and then registers itself with it.
    """

    fixed_scope: str | None = Field(default=None, exclude=True)
    more_scope: str = Field(default="", exclude=True)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a value; that of the scope is completed."""
        if name == "scope":
            asked = dict.fromkeys(f"{value or ''} {self.more_scope}".split())
            value = self.fixed_scope or " ".join(asked) or None
        super().__setattr__(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationCode:
    """What the authorization server sends back with the browser, and the verifier of the attempt."""

    code: str
    verifier: str
    issuer: str | None


class _CodeExchange(OAuthClientProvider):
    """The client with the code that a browser has brought, in place of a person to wait for."""

    fetched: AuthorizationCode

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        validate_authorization_response_iss(self.fetched.issuer, self.context.oauth_metadata)
        return self.fetched.code, self.fetched.verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthFlow:
    """The steps of sign-ins at one server. `client` is what an earlier registration returned."""

    config: McpServerConfig
    guard: EgressGuard
    policy: EgressPolicy
    redirect_uri: str
    client: Mapping[str, Any] | None = None

    async def authorize(self, attempt: SignInAttempt, *, scope: str = "") -> tuple[str, Mapping[str, Any]]:
        """Return the URL for a person's browser, and the client; raises SignInUnavailable.

        `scope` is asked for beside the server's usual one, unless the settings name the scope.
        """
        storage = self._storage(scope)
        url, status = await self._until_redirect(storage, None, scope)
        if url is None or storage.client is None:
            raise SignInUnavailable(f"the MCP server asks for no sign-in: it answers with status {status}")
        theirs = URL(url).update_query(state=attempt.state, code_challenge=attempt.code_challenge)
        return str(theirs), storage.client.model_dump(mode="json", exclude_none=True)

    async def exchange(self, fetched: AuthorizationCode) -> SignInGrant:
        """Return the grant for a code; raises SignInUnavailable, GrantRefused."""
        storage = self._storage()
        provider = _CodeExchange(self._address, self._metadata(), storage)
        provider.fetched = fetched
        try:
            await self._send(provider)
        except (SignInUnavailable, GrantRefused):
            if not storage.is_renewed:
                raise  # else the server refuses something after it has given the tokens
        if not storage.is_renewed:
            raise SignInUnavailable("the MCP server asks for no sign-in any more")
        return self._grant(provider, storage)

    async def renew(self, grant: SignInGrant, is_claimed: Callable[[], bool]) -> SignInGrant:
        """Return the grant with a new token; raises SignInUnavailable, GrantRefused if it is at an end.

        Nothing is sent once the renewal `is_claimed` no longer: another process may have renewed the token,
        and a server can end all tokens of a person when one is used twice.
        """
        tokens = OAuthToken.model_validate(grant.tokens)
        storage = _MemoryStorage(client=_client(grant.client), tokens=tokens)
        url, status = await self._until_redirect(storage, grant, may_send=is_claimed)
        if storage.is_renewed:
            return grant.renewed(_dump(storage.tokens), expires_at=_expiry(storage.tokens))
        if url is None:
            raise SignInUnavailable(f"the MCP server answers with status {status}")
        raise GrantRefused("the authorization server does not renew the token")

    async def _until_redirect(
        self,
        storage: _MemoryStorage,
        grant: SignInGrant | None,
        scope: str = "",
        *,
        may_send: Callable[[], bool] = lambda: True,
    ) -> tuple[str | None, int]:
        """Send a request until the client wants a browser; return its URL, or None and a status."""
        wanted: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def redirect(url: str) -> None:
            wanted.set_result(url)

        async def wait_forever() -> AuthorizationCodeResult:
            await asyncio.Event().wait()
            raise AssertionError

        provider = OAuthClientProvider(self._address, self._metadata(scope), storage, redirect, wait_forever)
        if grant is not None:
            _restore(provider, grant)
        sending = asyncio.create_task(self._send(provider, may_send))
        try:
            ends: set[asyncio.Future[Any]] = {sending, wanted}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return (wanted.result(), 401) if wanted.done() else (None, sending.result())
        except (SignInUnavailable, GrantRefused):
            if not storage.is_renewed:
                raise
            return None, 0
        finally:
            sending.cancel()
            await asyncio.wait({sending})

    async def _send(self, provider: OAuthClientProvider, may_send: Callable[[], bool] = lambda: True) -> int:
        """Send a request to the server with the client's authentication and return the answer's status."""

        async def check(_request: Any) -> None:
            if not may_send():
                raise OSError("the renewal was interrupted, and another process may have made it")

        policy = EgressPolicy(allow=self.policy.allow, ports=_HTTPS_ONLY)
        http = open_httpx2_client(
            EgressGuard(policy=policy),
            headers={},
            read_seconds=FLOW_SECONDS,
            max_bytes=MAX_BYTES,
            guards={origin_of(self._address): self.guard},
        )
        http.event_hooks["request"].append(check)
        http.event_hooks["response"].append(_refuse_failures)
        try:
            async with asyncio.timeout(FLOW_SECONDS), http:
                return await post_json(http, self._address, _INITIALIZE, headers=_HEADERS, auth=provider)
        except TimeoutError:
            raise SignInUnavailable(f"no answer within {FLOW_SECONDS:g} s") from None
        except OSError as error:
            raise SignInUnavailable(str(error)) from error
        except (OAuthFlowError, ValidationError, ValueError) as error:
            raise GrantRefused(str(error)) from error

    @property
    def _address(self) -> str:
        return self.config.url or ""

    def _metadata(self, scope: str = "") -> OAuthClientMetadata:
        oauth = self.config.oauth
        return _ClientMetadata.model_validate(
            {
                "fixed_scope": oauth.scope if oauth is not None else None,
                "more_scope": scope,
                "client_name": CLIENT_TITLE,
                "redirect_uris": [self.redirect_uri],
                "application_type": "web",
            }
        )

    def _storage(self, scope: str = "") -> _MemoryStorage:
        """Return the client that the settings name, or else the one that was registered for these scopes."""
        oauth = self.config.oauth
        if oauth is None or oauth.client_id is None:
            registered = str((self.client or {}).get("scope", "")).split()
            is_usable = self.client is not None and set(scope.split()) <= set(registered)
            return _MemoryStorage(client=_client(self.client) if self.client and is_usable else None)
        secret = oauth.client_secret
        named = {
            "client_id": oauth.client_id,
            "redirect_uris": [self.redirect_uri],
            "token_endpoint_auth_method": "client_secret_post" if secret else "none",
            **({"client_secret": secret.get_secret_value()} if secret else {}),
        }
        return _MemoryStorage(client=_client(named))

    def _grant(self, provider: OAuthClientProvider, storage: _MemoryStorage) -> SignInGrant:
        return SignInGrant(
            address=self._address,
            tokens=_dump(storage.tokens),
            expires_at=_expiry(storage.tokens),
            client=_dump(storage.client),
            metadata=_dump(provider.context.oauth_metadata),
            resource=_dump(provider.context.protected_resource_metadata),
        )


def _restore(provider: OAuthClientProvider, grant: SignInGrant) -> None:
    """Give the client what it found out when the person signed in, and let it renew the token first."""
    context = provider.context
    if grant.metadata:
        context.oauth_metadata = OAuthMetadata.model_validate(grant.metadata)
    if grant.resource:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(grant.resource)
        context.auth_server_url = str(context.protected_resource_metadata.authorization_servers[0])
    context.token_expiry_time = _EXPIRED


async def _refuse_failures(response: Any) -> None:
    """Raise OSError for a failure of a server, which says nothing about the grant."""
    if response.status_code >= 500 or response.status_code == 429:  # noqa: PLR2004 - failures, too many
        raise OSError(f"{response.request.url.host} answers with status {response.status_code}")


def _client(given: Mapping[str, Any]) -> OAuthClientInformationFull:
    return OAuthClientInformationFull.model_validate(dict(given))


def _dump(model: Any) -> Mapping[str, Any]:
    dumped: Mapping[str, Any] = (
        {} if model is None else model.model_dump(mode="json", by_alias=True, exclude_none=True)
    )
    return dumped


MAX_LIFETIME = 365 * 24 * 3600
"""Seconds after which a token is renewed at the latest."""


def _expiry(tokens: OAuthToken | None) -> float | None:
    """Return when a token ends; None if the server does not say."""
    if tokens is None or tokens.expires_in is None:
        return None
    return time.time() + max(0, min(int(tokens.expires_in), MAX_LIFETIME))
