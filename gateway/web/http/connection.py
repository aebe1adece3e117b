"""A connection of the web server, for browsers, clients and sandboxes alike."""

from __future__ import annotations

from functools import cache
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from gateway.web.http.problems import HttpProblem

log = structlog.get_logger("dovecote.web")

MAX_TARGET_BYTES, MAX_FIELD_BYTES = 8190, 8192
"""The longest URL and header field; they differ because an error of aiohttp only has the limit."""


def address_account(address: str) -> str:
    """Return the account for which the gateway works before a request from an address is authenticated."""
    return f"address {address}"


class RequestAbandoned(HttpProblem):
    """The client closed the connection before its request was answered; no client reads this problem."""

    def __init__(self) -> None:
        super().__init__(400, "the client closed the connection", close=True)


def raise_if_abandoned(request: web.Request, error: ConnectionError) -> None:
    """Raise RequestAbandoned if the error is that of the request's own connection, which is closed."""
    if is_abandoned(request):
        log.debug("request.abandoned", error=str(error))
        raise RequestAbandoned from error


def is_abandoned(request: web.Request) -> bool:
    """Return whether the connection of a request is closed."""
    return request.transport is None or request.transport.is_closing()


SERVER_HEADERS = {"Server": "dovecote", "X-Content-Type-Options": "nosniff"}
"""Headers of every response; aiohttp's own `Server` names its version and that of Python."""

_NO_PROXY_PROTOCOL = (
    "this is the PROXY protocol, which the gateway does not speak: turn it off in the proxy (haproxy "
    "`send-proxy`, nginx `proxy_protocol`), let it send X-Forwarded-For, and set trusted_proxies"
)
_OTHER_PROTOCOLS = {
    b"PROXY ": _NO_PROXY_PROTOCOL,
    b"\r\n\r\n\x00\r\nQUIT\n": _NO_PROXY_PROTOCOL,
    b"PRI * HTTP/2.0": (
        "this is HTTP/2, and the gateway speaks HTTP/1.1: let the proxy connect to the gateway with HTTP/1.1 "
        "(haproxy: without `proto h2`); to its clients it can speak HTTP/2"
    ),
    b"\x16\x03": (
        "this is TLS, and the gateway speaks plain HTTP at this address: use http://, or the address of the "
        "proxy before the gateway"
    ),
}
"""How connections begin that speak another protocol, as of a proxy that is set up otherwise."""

_LONGEST_BEGINNING = max(map(len, _OTHER_PROTOCOLS))


class HttpConnection(web.RequestHandler):
    """aiohttp's connection, with a problem as the reply to bytes that are no HTTP.

    Its own task works for no account, because it expects to run before `connection_lost`. The task of each
    request works for the client's address, and for its account when that is known.
    """

    __slots__ = ("_first",)

    def __init__(self, manager: web.Server, **options: Any) -> None:
        limits = {"max_line_size": MAX_TARGET_BYTES, "max_field_size": MAX_FIELD_BYTES}
        super().__init__(manager, **{**options, **limits})
        self._first = b""
        """The first bytes of the connection."""

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and keep the first ones."""
        self._first = self._first or data[:_LONGEST_BEGINNING]
        super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what was sent, keys included
    ) -> web.StreamResponse:
        """Reply to bytes that are no HTTP request, without repeating them in the reply or the log."""
        if status >= 500:  # noqa: PLR2004 - ours, not the client's
            log.error("connection.failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response was already started")
        is_ours = status >= 500  # noqa: PLR2004
        problem = HttpProblem(status, "internal error", close=True) if is_ours else _refusal(exc, self._first)
        response = problem.to_response()
        response.headers.update(SERVER_HEADERS)
        return response


@cache
def _report(reason: str) -> None:
    """Log once why connections are refused: with some protocols no peer can read it."""
    log.warning("connection.refused", reason=reason)


def _refusal(error: BaseException | None, first: bytes) -> HttpProblem:
    """Return why bytes are no request that the gateway takes (RFC 9110, 15.5.15; RFC 6585, 5)."""
    limit = error.args[1] if isinstance(error, LineTooLong) else None
    if limit == MAX_TARGET_BYTES:
        return HttpProblem(414, f"a URL may have at most {limit} bytes", close=True)
    if limit == MAX_FIELD_BYTES:
        return HttpProblem(431, f"a header field may have at most {limit} bytes", close=True)
    for beginning, reason in _OTHER_PROTOCOLS.items():
        if first.startswith(beginning):
            _report(reason)
            return HttpProblem(400, reason, close=True)
    return HttpProblem(400, "this is not a valid HTTP request", close=True)
