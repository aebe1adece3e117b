"""Sign-in to the console with an identity provider: the way there and back, and the exchange for a key."""

from __future__ import annotations

from datetime import datetime

import structlog
from aiohttp import web
from pydantic import Field

from gateway.sign_in.attempt import LIFETIME
from gateway.sign_in.errors import SignInFailed
from gateway.sign_in.oidc_sign_in import CALLBACK_PATH, CODE_SECONDS, OidcSignIn
from gateway.web.http.auth import KeyAccess, OneTimeCodeAccess
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import AUTHENTICATOR, ApiCall, ApiRoute, NoContent, ResponseModel
from gateway.web.http.route_table import PUBLIC, get_route, post_route

log = structlog.get_logger(__name__)

BEGIN_PATH = "/console/oidc"
ATTEMPT_COOKIE, CODE_COOKIE = "dovecote-sign-in", "dovecote-code"
MAX_VALUE = 4096
"""Characters of a value that comes with the browser from the provider."""


class ProviderResponse(ResponseModel):
    """An identity provider: its name, and the address at which a browser begins the sign-in."""

    label: str
    url: str


class SignInResponse(ResponseModel):
    """How people sign in to the console, apart from an API key; `oidc` null: in no other way."""

    oidc: ProviderResponse | None


class SessionResponse(ResponseModel):
    """The key of a person who signed in, and when it ends."""

    key: str = Field(repr=False)
    expires_at: datetime


class LeaveResponse(ResponseModel):
    """Where the browser ends its session at the identity provider; null: nowhere."""

    url: str | None


async def describe(call: ApiCall[NoContent, NoContent]) -> SignInResponse:
    """Return how people can sign in."""
    sign_in = call.context.sign_in
    if sign_in is None:
        return SignInResponse(oidc=None)
    url = f"{sign_in.public_url}{BEGIN_PATH}"
    return SignInResponse(oidc=ProviderResponse(label=sign_in.settings.label, url=url))


async def begin(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Send the browser to the provider, with a cookie that binds the attempt to it."""
    sign_in = _require_sign_in(call)
    try:
        attempt, url = await sign_in.begin()
    except SignInFailed as failed:
        return _to_console(sign_in, failed)
    response = _redirect(url)
    _set_cookie(response, sign_in, ATTEMPT_COOKIE, attempt.cookie, seconds=LIFETIME)
    return response


async def finish(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Check what the browser brings back from the provider, and send it to the console."""
    sign_in = _require_sign_in(call)
    answer = {name: value[:MAX_VALUE] for name, value in call.request.query.items()}
    cookie = call.request.cookies.get(_cookie_name(sign_in, ATTEMPT_COOKIE), "")
    address = call.request.app[AUTHENTICATOR].client_address(call.request)
    try:
        code = await sign_in.finish(cookie, answer, address=address)
    except SignInFailed as failed:
        response = _to_console(sign_in, failed)
    else:
        response = _redirect(f"{sign_in.public_url}/#/signed-in")
        _set_cookie(response, sign_in, CODE_COOKIE, code, seconds=CODE_SECONDS)
    _set_cookie(response, sign_in, ATTEMPT_COOKIE, "", seconds=0)
    return response


async def open_session(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Exchange the one-time code in the browser's cookie for the person's key."""
    sign_in = _require_sign_in(call)
    code = call.request.cookies.get(_cookie_name(sign_in, CODE_COOKIE), "")
    session = await sign_in.redeem(code) if code else None
    if session is None:
        raise not_found("this sign-in was used before or is too old; sign in again")
    answer = SessionResponse(key=session.key, expires_at=session.expires)
    response = web.Response(
        body=answer.model_dump_json().encode(),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
    _set_cookie(response, sign_in, CODE_COOKIE, "", seconds=0)
    return response


async def leave(call: ApiCall[NoContent, NoContent]) -> LeaveResponse:
    """Revoke the request's key if a person signed in with it; other keys stay as they are."""
    authenticator = call.context.api_key_authenticator
    if not await authenticator.is_of_person(call.principal):
        return LeaveResponse(url=None)
    await authenticator.revoke(call.principal.key)
    sign_in = call.context.sign_in
    return LeaveResponse(url=await sign_in.end_session_url() if sign_in is not None else None)


def _require_sign_in(call: ApiCall[NoContent, NoContent]) -> OidcSignIn:
    if call.context.sign_in is None:
        raise HttpProblem(404, "no identity provider is configured ([oidc])")
    return call.context.sign_in


def _to_console(sign_in: OidcSignIn, failed: SignInFailed) -> web.Response:
    log.warning("sign_in.failed", failure=failed.failure, error=str(failed))
    return _redirect(f"{sign_in.public_url}/#/sign-in/{failed.failure}")


def _redirect(url: str) -> web.Response:
    return web.Response(
        status=302,
        headers={"Location": url, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"},
    )


def _cookie_name(sign_in: OidcSignIn, name: str) -> str:
    """Return a cookie's name; over TLS with the prefix that keeps other hosts from setting it."""
    return f"__Host-{name}" if sign_in.is_secure else name


def _set_cookie(response: web.Response, sign_in: OidcSignIn, name: str, value: str, *, seconds: int) -> None:
    """Set a cookie that scripts cannot read; 0 seconds delete it."""
    response.set_cookie(
        _cookie_name(sign_in, name),
        value,
        max_age=seconds,
        path="/",
        secure=sign_in.is_secure,
        httponly=True,
        samesite="Lax",
    )


_REDIRECTS = {302: "to the identity provider or the console", 404: "no identity provider is configured"}

ROUTES: tuple[ApiRoute, ...] = (
    get_route(
        "/console/sign-in",
        PUBLIC,
        describe,
        "return how people sign in to the console",
        response_model=SignInResponse,
        tag="console",
    ),
    get_route(
        BEGIN_PATH,
        PUBLIC,
        begin,
        "begin a sign-in: redirect to the identity provider",
        status=302,
        empty_responses=_REDIRECTS,
        tag="console",
    ),
    get_route(
        CALLBACK_PATH,
        PUBLIC,
        finish,
        "finish a sign-in: the identity provider redirects the browser here",
        status=302,
        empty_responses=_REDIRECTS,
        tag="console",
    ),
    post_route(
        "/console/oidc/session",
        OneTimeCodeAccess(),
        open_session,
        "exchange the one-time code in the browser's cookie for a key",
        response_model=SessionResponse,
        tag="console",
    ),
    post_route(
        "/console/leave",
        KeyAccess("read"),
        leave,
        "revoke the request's key if a person signed in with it",
        response_model=LeaveResponse,
        tag="console",
    ),
)
"""The sign-in's part of the URL table."""
