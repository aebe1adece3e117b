"""Who may ask: one middleware reads every route's marker and lets in, or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.accounts.api_keys import Principal, Scope, digest_of
from gateway.web.http.auth_lockout import Limiter, client_address
from gateway.web.http.connection_limit import CROWD
from gateway.web.http.context import Surface
from gateway.web.http.problems import Handler, Problem
from gateway.web.http.rate_limit import Rates, Standing

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Public:
    """Anybody."""


@dataclass(frozen=True, slots=True)
class Key:
    """An account's key with this scope."""

    scope: Scope


@dataclass(frozen=True, slots=True)
class Admin:
    """The operator's key."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A chat platform; its adapter verifies the request's signature."""


@dataclass(frozen=True, slots=True)
class JobToken:
    """A job's own token; the route compares it."""


@dataclass(frozen=True, slots=True)
class Socket:
    """An account's key in the header or in the first frame; the stream looks at it."""


@dataclass(frozen=True, slots=True)
class Signed:
    """Whoever has a signed link, or an account's key; the route looks at both."""


Access = Public | Key | Admin | Platform | JobToken | Socket | Signed

PRINCIPAL = web.RequestKey("principal", Principal)
BEARER = web.RequestKey("bearer", str)
RATE = web.RequestKey("rate", Standing)


@dataclass(slots=True)
class Door:
    """Admits requests; one for an application, holding its failure counts."""

    surface: Surface
    limiter: Limiter
    rates: Rates
    markers: dict[object, Access] = field(default_factory=dict)

    @classmethod
    def of(cls, surface: Surface) -> Door:
        """Return the door of a surface."""
        bounds = surface.bounds
        limiter = Limiter(failures=bounds.auth_failures, window=bounds.auth_window)
        return cls(surface, limiter, Rates(bounds.requests_per_minute))

    def middleware(self) -> Middleware:
        """Return the aiohttp middleware that asks every route's marker."""

        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.match_info.http_exception is None:
                await self.admit(request, self.markers[request.match_info.route])
            return await handler(request)

        return admit

    async def admit(self, request: web.Request, access: Access) -> None:
        """Raise a Problem unless the request may pass; remembers who asks."""
        if request.method not in SAFE or isinstance(access, Socket):
            self.check_origin(request)
        match access:
            case Key(scope=scope):
                principal = await self.authenticate(request, bearer_of(request))
                request[PRINCIPAL] = principal  # refused or not: the audit log wants to know
                self._count(request, f"key {principal.key}")
                require(principal, scope)
            case Admin():
                await self._operator(request, bearer_of(request))
            case JobToken():
                self._open_or_locked(request, b"")
                self._count(request, self.address(request))
                request[BEARER] = bearer_of(request)
            case _:
                self._count(request, self.address(request))

    def _count(self, request: web.Request, asker: str) -> None:
        """Take the request out of the asker's minute; 429 when that is used up."""
        standing = self.rates.take(asker)
        request[RATE] = standing
        if not standing.allowed:
            raise Problem(
                429, f"more than {standing.quota} requests a minute (DOVECOTE_REQUESTS_PER_MINUTE); slow down"
            )

    async def authenticate(self, request: web.Request, bearer: str) -> Principal:
        """Return who the key is; 401 when nobody, 429 for an address that failed too often."""
        digest = digest_of(bearer)
        self._open_or_locked(request, digest)
        principal = await self.surface.gatekeeper.authenticate(bearer)
        if principal is None:
            raise self.refused(request)
        self.limiter.proved(self.address(request), digest)
        self.known(request, principal.key)
        return principal

    async def _operator(self, request: web.Request, bearer: str) -> None:
        digest = digest_of(bearer)
        self._open_or_locked(request, digest)
        admin = self.surface.admin_key
        if admin is not None and admin.matches(bearer):
            self.limiter.proved(self.address(request), digest)
            return
        if await self.surface.gatekeeper.authenticate(bearer) is None:
            raise self.refused(request)
        remedy = "" if admin is not None else "; none is configured (DOVECOTE_ADMIN_KEY)"
        raise Problem(403, f"this takes the operator's admin key{remedy}")

    def known(self, request: web.Request, key: str) -> None:
        """Count the connection by who it is from now on; 429 for one too many."""
        crowd = request.config_dict.get(CROWD)
        if crowd is not None and not crowd.identifies(request.transport, key):
            raise Problem(429, "too many connections with this key", headers={"Retry-After": "5"}, close=True)

    def refused(self, request: web.Request) -> Problem:
        """Count a failure and return the 401."""
        self.limiter.failed(self.address(request))
        return unauthorized()

    def _open_or_locked(self, request: web.Request, digest: bytes) -> None:
        address = self.address(request)
        left = self.limiter.locked(address)
        if left > 0 and not self.limiter.is_proven(address, digest):
            raise Problem(
                429,
                "too many failed attempts from this address; try again later",
                headers={"Retry-After": str(math.ceil(left))},
            )

    def address(self, request: web.Request) -> str:
        """Return the address failures are counted by."""
        forwarded = request.headers.getall("X-Forwarded-For", [])
        return client_address(request.remote or "", forwarded, self.surface.trusted_proxies)

    def check_origin(self, request: web.Request) -> None:
        """Refuse what a browser sends from another site's page."""
        origin = request.headers.get("Origin")
        if origin is None:
            crossing = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
            if crossing or "Cookie" in request.headers:
                raise Problem(403, "this request comes from another site")
        elif len(request.headers.getall("Origin")) > 1 or not self.is_own(origin, request.headers):
            raise Problem(403, "this origin may not use the gateway; the operator can list it")

    def is_own(self, origin: str, headers: object) -> bool:
        """Say whether an origin is exactly one listed, the public one, or this very host by its address."""
        public = self.surface.public_url
        if origin in self.surface.origins or (public and origin == _origin_of(public)):
            return True
        host = headers.get("Host", "")  # type: ignore[attr-defined]
        return origin in (f"http://{host}", f"https://{host}") and _is_address(host)


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_address(host: str) -> bool:
    """A name may be another site's, pointed at us; an address or `localhost` cannot be."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def bearer_of(request: web.Request) -> str:
    """Return the one bearer token of the request; 401 for none, several or another scheme."""
    given = request.headers.getall("Authorization", [])
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorized()
    return token.strip()


def unauthorized() -> Problem:
    """Return the one answer to a missing, wrong or revoked key."""
    return Problem(
        401, "a valid key is needed: Authorization: Bearer <key>", headers={"WWW-Authenticate": "Bearer"}
    )


def require(principal: Principal, scope: Scope) -> None:
    """Refuse a key without the scope."""
    if scope not in principal.scopes:
        raise Problem(403, f"this key does not have the scope {scope!r}")
