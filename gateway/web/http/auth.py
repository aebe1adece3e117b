"""Authentication and authorization of requests, by the access that each route declares."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from delivery.database.clock import utc_now
from delivery.fair_gate import set_current_account
from gateway.accounts.api_keys import Principal, key_digest
from gateway.accounts.stream_tickets import StreamTicket
from gateway.config.sign_in_settings import KeyScope
from gateway.store.turns.jobs import Job
from gateway.web.http import connection_limit
from gateway.web.http.auth_lockout import FailureLockout, client_address
from gateway.web.http.connection import address_account
from gateway.web.http.connection_limit import CONNECTION_LIMITER
from gateway.web.http.context import WebContext
from gateway.web.http.problems import Handler, HttpProblem
from gateway.web.http.rate_limit import RateLimitState, RequestRateLimiter

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class PublicAccess:
    """Access without a key."""


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """Access with an account's key that has this scope."""

    scope: KeyScope


@dataclass(frozen=True, slots=True)
class TicketAccess(KeyAccess):
    """Access with a key that has this scope, or with a ticket of one conversation in the query.

    The route compares the ticket's conversation with its own.
    """


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Access with the operator's key."""


@dataclass(frozen=True, slots=True)
class PlatformAccess:
    """Access for a chat platform; its adapter verifies the request's signature."""


@dataclass(frozen=True, slots=True)
class OneTimeCodeAccess:
    """Access with a code in the body that is valid once; the handler redeems it."""


@dataclass(frozen=True, slots=True)
class SignatureAccess:
    """Access for clients that sign the body with a secret of the resource; the route verifies it."""


@dataclass(frozen=True, slots=True)
class JobTokenAccess:
    """Access with the token of the job that the path names."""


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """Access with an account's key in the header or in the first frame, which the stream checks."""


@dataclass(frozen=True, slots=True)
class SignedLinkAccess:
    """Access with a signed link or an account's key; the route checks both."""


Access = (
    PublicAccess
    | KeyAccess
    | TicketAccess
    | AdminAccess
    | PlatformAccess
    | SignatureAccess
    | OneTimeCodeAccess
    | JobTokenAccess
    | SocketAccess
    | SignedLinkAccess
)

PRINCIPAL = web.RequestKey("principal", Principal)
OPERATED_ACCOUNT = web.RequestKey("operated account", str)
"""The account that a request with the operator's key is about."""
KEY_ACCESS = web.RequestKey("access", KeyAccess)
JOB = web.RequestKey("job", Job)
TICKET = web.RequestKey("ticket", StreamTicket)
TICKET_PARAMETER = "ticket"
RATE_LIMIT = web.RequestKey("rate", RateLimitState)


def account_of(request: web.Request) -> str | None:
    """Return the account of a request's key; None without a valid one."""
    return request[PRINCIPAL].account if PRINCIPAL in request else None


@dataclass(slots=True)
class Authenticator:
    """Authenticates and authorizes an application's requests, with its failure counts and rate limits."""

    context: WebContext
    lockout: FailureLockout
    rate_limiter: RequestRateLimiter
    access_by_route: dict[object, Access] = field(default_factory=dict)

    @classmethod
    def for_context(cls, context: WebContext) -> Authenticator:
        """Return the authenticator of an application."""
        bounds = context.limits
        limiter = FailureLockout(failures=bounds.auth_failures, window=bounds.auth_window)
        return cls(context, limiter, RequestRateLimiter(bounds.requests_per_minute))

    def middleware(self) -> Middleware:
        """Return the aiohttp middleware that authorizes requests by their route's access."""

        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                client = self.client_address(request)
                connection_limit.begin_request(request, client)
                if request.match_info.http_exception is None:
                    set_current_account(address_account(client))
                    await self.authorize(request, self.access_by_route[request.match_info.route])
                    await asyncio.sleep(0)  # the rest is done when the account is next
                return await handler(request)
            finally:
                connection_limit.end_request(request)

        return admit

    async def authorize(self, request: web.Request, access: Access) -> None:
        """Raise HttpProblem unless the request is allowed; stores its principal in the request."""
        if request.method not in SAFE_METHODS or isinstance(access, SocketAccess):
            self.check_origin(request)
        match access:
            case TicketAccess() if _has_ticket(request):
                request[PRINCIPAL] = principal = await self._authenticate_ticket(request)
                self._check_rate_limit(request, key_client(principal))
            case KeyAccess():
                principal = await self.authenticate(request, bearer_token(request))
                request[PRINCIPAL] = principal  # also for a refused request, for the audit log
                self._check_rate_limit(request, key_client(principal))
                require_scope(principal, access.scope)
                request[KEY_ACCESS] = access
            case AdminAccess():
                await self._authenticate_operator(request, bearer_token(request))
            case JobTokenAccess():
                self._check_lockout(request, b"")
                self._check_rate_limit(request, self.client_address(request))
                request[JOB] = job = await self._authenticate_job(request, bearer_token(request))
                set_current_account(job.account)
            case _:
                self._check_rate_limit(request, self.client_address(request))

    def _check_rate_limit(self, request: web.Request, client: str) -> None:
        """Count the request for the client's rate limit; 429 when it is used up."""
        state = self.rate_limiter.try_acquire(client)
        request[RATE_LIMIT] = state
        if not state.allowed:
            raise HttpProblem(
                429,
                f"more than {state.quota} requests per minute (DOVECOTE_REQUESTS_PER_MINUTE); slow down",
            )

    async def authenticate(self, request: web.Request, bearer: str) -> Principal:
        """Return the principal of a key; 401 for an unknown key, 429 for an address that failed too often."""
        digest = key_digest(bearer)
        self._check_lockout(request, digest)
        principal = await self.context.api_key_authenticator.authenticate(bearer)
        if principal is None:
            raise self.failed_authentication(request)
        self.lockout.record_success(self.client_address(request), digest)
        self.count_connection(request, principal.key)
        set_current_account(principal.account)
        return principal

    async def _authenticate_ticket(self, request: web.Request) -> Principal:
        """Return the principal of a ticket: its key may read, and must still be valid."""
        self._check_lockout(request, b"")
        ticket = self.context.stream_tickets.verify(request.query[TICKET_PARAMETER], now=utc_now())
        if ticket is None:
            raise self.failed_authentication(request)
        principal = Principal(account=ticket.account, key=ticket.key, scopes=frozenset({"read"}))
        if not await self.context.api_key_authenticator.is_valid(principal):
            raise self.failed_authentication(request)
        self.count_connection(request, principal.key)
        set_current_account(principal.account)
        request[TICKET] = ticket
        return principal

    async def _authenticate_operator(self, request: web.Request, bearer: str) -> None:
        digest = key_digest(bearer)
        self._check_lockout(request, digest)
        admin = self.context.admin_key
        if admin is not None and admin.matches(bearer):
            self.lockout.record_success(self.client_address(request), digest)
            return
        if await self.context.api_key_authenticator.authenticate(bearer) is None:
            raise self.failed_authentication(request)
        remedy = "" if admin is not None else "; none is configured (DOVECOTE_ADMIN_KEY)"
        raise HttpProblem(403, f"this needs the operator's admin key{remedy}")

    async def _authenticate_job(self, request: web.Request, token: str) -> Job:
        """Return the job of the path; an unknown id and a wrong token are the same 401."""
        if self.context.services is None:
            raise HttpProblem(503, "this process serves records only")
        settlement = self.context.services.job_settlement
        job = await settlement.authenticate(request.match_info["id"], token)
        if job is None:
            raise self.failed_authentication(request)
        return job

    def count_connection(self, request: web.Request, key: str) -> None:
        """Count the connection by its key from now on; 429 for one too many."""
        limiter = request.config_dict.get(CONNECTION_LIMITER)
        if limiter is not None and not limiter.identify(request.protocol, key):
            raise connection_limit.too_many_connections("with this key")

    def failed_authentication(self, request: web.Request) -> HttpProblem:
        """Count a failed authentication and return its 401."""
        self.lockout.record_failure(self.client_address(request))
        return unauthorized()

    def _check_lockout(self, request: web.Request, digest: bytes) -> None:
        address = self.client_address(request)
        left = self.lockout.locked_for(address)
        if left > 0 and not self.lockout.has_succeeded(address, digest):
            raise HttpProblem(
                429,
                "too many failed attempts from this address; try again later",
                headers={"Retry-After": str(math.ceil(left))},
            )

    def client_address(self, request: web.Request) -> str:
        """Return the client's address, from X-Forwarded-For behind a trusted proxy."""
        forwarded = request.headers.getall("X-Forwarded-For", [])
        return client_address(request.remote or "", forwarded, self.context.trusted_proxies)

    def check_origin(self, request: web.Request) -> None:
        """Raise 403 for a request that a browser sends from another site's page."""
        origin = request.headers.get("Origin")
        if origin is None:
            crossing = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
            if crossing or "Cookie" in request.headers:
                raise HttpProblem(403, "this request comes from another site")
        elif len(request.headers.getall("Origin")) > 1 or not self.is_allowed_origin(origin, request.headers):
            raise HttpProblem(403, "this origin is not allowed; the operator can add it to allowed_origins")

    def is_allowed_origin(self, origin: str, headers: object) -> bool:
        """Return whether an origin is listed, is the public URL's, or is this host by its address."""
        public = self.context.public_url
        if origin in self.context.allowed_origins or (public and origin == _origin_of(public)):
            return True
        host = headers.get("Host", "")  # type: ignore[attr-defined]
        return origin in (f"http://{host}", f"https://{host}") and _is_address(host)


def _has_ticket(request: web.Request) -> bool:
    return TICKET_PARAMETER in request.query and hdrs.AUTHORIZATION not in request.headers


def key_client(principal: Principal) -> str:
    """Return the client under which the requests and frames of a key are counted."""
    return f"key {principal.key}"


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_address(host: str) -> bool:
    """Return whether a host is an address or `localhost`; another site's name could resolve to us."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def bearer_token(request: web.Request) -> str:
    """Return the one bearer token of the request; 401 for none, several or another scheme."""
    headers = request.headers.getall("Authorization", [])
    scheme, _, token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorized()
    return token.strip()


def unauthorized() -> HttpProblem:
    """Return the 401 for a missing, wrong or revoked key."""
    return HttpProblem(
        401, "a valid key is required: Authorization: Bearer <key>", headers={"WWW-Authenticate": "Bearer"}
    )


def require_scope(principal: Principal, scope: KeyScope) -> None:
    """Raise 403 for a key without the scope."""
    if scope not in principal.scopes:
        raise HttpProblem(403, f"this key does not have the scope {scope!r}")
