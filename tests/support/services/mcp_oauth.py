"""An MCP server that people sign in to, with its authorization server, made with the official package.

Everybody is signed in at once: the authorization endpoint redirects back without a page.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl


@dataclass(kw_only=True)
class LoopbackAuthority(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The authorization server: what it has given out, and the faults that a test wants."""

    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    access: dict[str, AccessToken] = field(default_factory=dict)
    refresh: dict[str, RefreshToken] = field(default_factory=dict)
    asked: list[AuthorizationParams] = field(default_factory=list)
    revoked: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    reused: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a refresh token comes that was used before."""

    renewals: int = 0
    subject: str = "ann"
    lifetime: int = 3600
    """Seconds of the tokens that it gives out from now on."""

    before_renewal: Callable[[], Awaitable[None]] | None = None
    """What happens while a token is renewed."""

    call_scope: str | None = None
    """A scope without which the server refuses calls of tools, with the status `call_refusal`."""

    call_refusal: int = 403
    denies: bool = False
    """Whether the person refuses."""

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """Return a registered client."""
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """Register a client."""
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """Return where the browser goes: back, with a code or an error."""
        self.asked.append(params)
        if self.denies:
            return construct_redirect_uri(str(params.redirect_uri), error="access_denied", state=params.state)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(16),
            scopes=params.scopes or [],
            expires_at=time.time() + 300,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=self.subject,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        """Return a code that was not used."""
        del client
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        """Return tokens for a code, once."""
        del self.codes[authorization_code.code]
        return self._issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        """Return a refresh token that was not used."""
        del client
        if refresh_token not in self.refresh:
            self.reused.set()
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        """Return new tokens; the old refresh token ends."""
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        self.renewals += 1
        if self.before_renewal is not None:
            await self.before_renewal()
        return self._issue(client, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        """Return an access token."""
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        """Revoke a token."""
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)
        self.revoked.put_nowait(token.token)

    def _issue(
        self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None
    ) -> OAuthToken:
        access, refresh = (f"{kind}-{secrets.token_urlsafe(16)}" for kind in ("access", "refresh"))
        about: dict[str, Any] = {"client_id": client.client_id, "scopes": scopes, "resource": resource}
        expires_at = int(time.time()) + self.lifetime
        self.access[access] = AccessToken(token=access, expires_at=expires_at, subject=self.subject, **about)
        self.refresh[refresh] = RefreshToken(token=refresh, **about)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.lifetime)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedMcpService:
    """A running server, its authorization server, and the people whose tokens its calls had."""

    url: str
    authority: LoopbackAuthority
    callers: list[str]
    tokens: list[str]
    """The tokens of the messages to the server."""


@asynccontextmanager
async def protected_mcp_service() -> AsyncIterator[ProtectedMcpService]:
    """Serve a tool to people who signed in, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        authority = LoopbackAuthority()
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(base),
            resource_server_url=AnyHttpUrl(f"{base}/mcp"),
            validate_token_resource=True,
            client_registration_options=ClientRegistrationOptions(enabled=True),
            revocation_options=RevocationOptions(enabled=True),
        )
        server = MCPServer("notes", auth_server_provider=authority, auth=settings)
        service = ProtectedMcpService(url=f"{base}/mcp", authority=authority, callers=[], tokens=[])

        @server.tool()
        async def whoami() -> str:
            """Return who calls."""
            token = get_access_token()
            subject = token.subject if token is not None and token.subject else "nobody"
            service.callers.append(subject)
            return f"you are {subject}"

        app = _with_scopes(server.streamable_http_app(), service)
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, lifespan="on")
        runner = uvicorn.Server(config)
        serving = asyncio.create_task(runner.serve(sockets=[listening]))
        try:
            yield service
        finally:
            runner.should_exit = True
            runner.force_exit = True
            await serving


def _with_scopes(app: Any, service: ProtectedMcpService) -> Any:
    """Return the application behind a check of the scope of calls (RFC 6750)."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != "/mcp":
            await app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = dict(scope["headers"])
        token = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        service.tokens.append(token)
        authority, given = service.authority, service.authority.access.get(token)
        required = authority.call_scope if b'"tools/call"' in body else None
        if required is not None and given is not None and required not in given.scopes:
            challenge = f'Bearer error="insufficient_scope", scope="{required}"'
            sent = [(b"www-authenticate", challenge.encode())]
            await send({"type": "http.response.start", "status": authority.call_refusal, "headers": sent})
            await send({"type": "http.response.body", "body": b""})
            return
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(messages, None) or await receive()

        await app(scope, again, send)

    return checked
