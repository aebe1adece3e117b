"""An OpenID Connect provider on loopback, with the faults of broken and hostile ones.

Written from OpenID Connect Core 1.0 (sections 3.1.2, 3.1.3, 2), Discovery 1.0 (sections 3, 4) and RFC 7636.
Everybody is signed in at once: the authorization endpoint redirects back without a page.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote_plus

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from yarl import URL

CLIENT_ID, CLIENT_SECRET = "dovecote console", "a client's secret: 50%"

Forge = Callable[["LoopbackIssuer", dict[str, Any]], str]
"""Makes an ID token of the right claims."""


def sign(issuer: LoopbackIssuer, claims: dict[str, Any]) -> str:
    """Return a token as the provider signs it."""
    return jwt.encode(claims, issuer.key, algorithm="RS256", headers={"kid": issuer.key_id})


@dataclass(slots=True)
class LoopbackIssuer:
    """The provider; `claims` are added to each token, and `forge` makes it."""

    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "248289761001", "groups": ["ops"]})
    forge: Forge = sign
    url: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Replaces values of the metadata."""

    jwks: dict[str, Any] | None = None
    """Replaces the published keys."""

    error: str | None = None
    """The error that the authorization endpoint answers with."""

    token_answer: tuple[int, bytes] | None = None
    """Replaces the token endpoint's answer."""

    key: Any = None
    key_id: str = ""
    asked: list[str] = field(default_factory=list)
    """The paths that were asked for."""

    authorizations: list[Mapping[str, str]] = field(default_factory=list)
    _codes: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def rotate(self) -> None:
        """Publish and use a new key; the former one is gone."""
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = secrets.token_hex(4)

    def application(self) -> web.Application:
        """Return the provider's web application."""

        @web.middleware
        async def record(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            self.asked.append(request.path)
            answer: web.StreamResponse = await handler(request)
            return answer

        application = web.Application(middlewares=[record])
        application.router.add_get("/.well-known/openid-configuration", self._discovery)
        application.router.add_get("/authorize", self._authorize)
        application.router.add_post("/token", self._token)
        application.router.add_get("/keys", self._keys)
        application.router.add_get("/end", self._end)
        return application

    async def _discovery(self, _request: web.Request) -> web.Response:
        about: dict[str, Any] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/end",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }
        return web.json_response(about | self.metadata)

    async def _end(self, _request: web.Request) -> web.Response:
        return web.Response(text="You are signed out.")

    async def _keys(self, _request: web.Request) -> web.Response:
        own = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        published = {"keys": [{**own, "kid": self.key_id, "use": "sig", "alg": "RS256"}]}
        return web.json_response(published if self.jwks is None else self.jwks)

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        self.authorizations.append(asked)
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert "openid" in asked["scope"].split()
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        answer = {"error": self.error} if self.error else {"code": code}
        back = URL(asked["redirect_uri"]).update_query(answer | {"state": asked["state"]})
        return web.Response(status=302, headers={"Location": str(back)})

    async def _token(self, request: web.Request) -> web.Response:
        if self.token_answer is not None:
            status, body = self.token_answer
            return web.Response(status=status, body=body, content_type="application/json")
        form = await request.post()
        if not _is_client(request.headers.get("Authorization", ""), form):
            return web.json_response({"error": "invalid_client"}, status=401)
        asked = self._codes.pop(str(form.get("code")), None)
        if asked is None or not _proves(str(form.get("code_verifier")), asked["code_challenge"]):
            return web.json_response({"error": "invalid_grant"}, status=400)
        assert form["grant_type"] == "authorization_code"
        assert form["redirect_uri"] == asked["redirect_uri"]
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "exp": now + 300,
            "iat": now,
            "nonce": asked["nonce"],
            **self.claims,
        }
        token = {"access_token": secrets.token_urlsafe(8), "token_type": "Bearer", "expires_in": 300}
        return web.json_response(token | {"id_token": self.forge(self, claims)})


@cache
def _first_key() -> rsa.RSAPrivateKey:
    """Return the key that each provider of a test run begins with: making one takes long."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _is_client(header: str, form: Mapping[str, Any]) -> bool:
    """Return whether a request has the client's secret, in the header or in the form (never in both)."""
    if header:
        pair = base64.b64decode(header.removeprefix("Basic ")).decode().split(":")
        return [unquote_plus(part) for part in pair] == [CLIENT_ID, CLIENT_SECRET]
    return (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)


def _proves(verifier: str, challenge: str) -> bool:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge


@asynccontextmanager
async def loopback_issuer() -> AsyncIterator[LoopbackIssuer]:
    """Run a provider on a free port."""
    issuer = LoopbackIssuer()
    issuer.key, issuer.key_id = _first_key(), "first"
    runner = web.AppRunner(issuer.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield issuer
    finally:
        await runner.cleanup()
