"""`/views/{link}/…`: the desktop of a live sandbox, passed on to clients with a link that has not expired.

What a sandbox serves is foreign. Its pages get an origin of their own (CSP `sandbox`), so they reach neither
the console nor its key; no cookie and no header of the person passes, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

from delivery.database.clock import utc_now
from egress.guard import TRUSTED
from egress.policy import EgressRefused
from egress.sessions import open_session
from gateway.accounts.api_keys import Principal
from gateway.accounts.view_links import PATH, ViewLink
from gateway.web.http.auth import SignedLinkAccess
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import PATH_PARAMETER, ApiCall, ApiRoute, NoContent
from gateway.web.stream.live_page import HEAD_BYTES, with_storage
from gateway.web.stream.readers import StreamReader, StreamReaders
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_FRAME_BYTES = 4 * 1024 * 1024
CHUNK = 64 * 1024
URL_SECONDS = 30.0
"""Seconds for which the address of a port is kept: a page has many parts."""

MAX_URLS = 256
HEARTBEAT_SECONDS = 30.0
_OTHER_WAY = "have the agent send it as a file"
_FRAMES = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
_ABNORMAL = aiohttp.WSCloseCode.ABNORMAL_CLOSURE
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "sandbox allow-scripts allow-pointer-lock",
    "Access-Control-Allow-Origin": "*",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
"""The page's origin is opaque, so also its own scripts are fetched across origins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownUrl:
    """The address of a port. After a suspension another sandbox may have it: it holds for one instance."""

    instance: tuple[object, ...]
    until: float
    url: str


class LiveViews:
    """The client of sandboxes' ports, and the addresses that it asked for lately."""

    def __init__(self, readers: StreamReaders) -> None:
        self.readers = readers
        self.session: aiohttp.ClientSession | None = None
        self._urls: dict[tuple[str, str, int], _KnownUrl] = {}

    async def running(self, _application: object = None) -> AsyncIterator[None]:
        """Keep a client open while the application runs."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
        async with open_session(TRUSTED, timeout=timeout) as self.session:
            yield

    async def url(self, call: ApiCall[NoContent, NoContent], link: ViewLink) -> URL:
        """Return the address of a link's port; raises HttpProblem."""
        key, now = (link.account, link.sandbox, link.port), asyncio.get_running_loop().time()
        control = call.services.sandbox_control
        row = await control.get(link.account, link.sandbox)
        if row is None:
            raise _not_found()
        instance = (row.sandbox, row.boot, row.active_since, row.paused)
        known = self._urls.get(key)
        if known is None or known.instance != instance or known.until < now:
            try:
                url = await control.expose(row, link.port)
            except SandboxError as error:
                raise HttpProblem(503, f"the sandbox cannot be reached: {error}") from error
            while len(self._urls) >= MAX_URLS:
                del self._urls[next(iter(self._urls))]
            known = self._urls[key] = _KnownUrl(instance=instance, until=now + URL_SECONDS, url=url)
        return URL(known.url)

    def discard(self, link: ViewLink) -> None:
        """Ask again for a port's address: nothing answers at the one that is known."""
        self._urls.pop((link.account, link.sandbox, link.port), None)


VIEWS = web.AppKey("views", LiveViews)


def install(application: web.Application, readers: StreamReaders) -> None:
    """Open the client of live views with the application."""
    views = application[VIEWS] = LiveViews(readers)
    application.cleanup_ctx.append(views.running)


async def show(call: ApiCall[NoContent, NoContent]) -> web.StreamResponse:
    """Pass a request on to the sandbox: a file of its page, or the WebSocket of its screen."""
    views = call.request.app[VIEWS]
    link = await _open_link(call)
    address = await views.url(call, link)
    page = address.joinpath(*_names(call.path["path"])).with_query(None)
    target = URL(f"{page}?{_query(call.request.rel_url, address)}")
    assert views.session is not None
    try:
        if call.request.headers.get("Upgrade", "").lower() == "websocket":
            principal = _principal(link) if link.key else None
            seconds = max(0.0, link.expires - utc_now().timestamp())
            with views.readers.register(principal) as reader, reader.limited_to(seconds):
                return await _relay_socket(call.request, views.session, target, reader)
        return await _relay_file(call.request, views.session, target)
    except (aiohttp.ClientError, EgressRefused, TimeoutError) as error:
        views.discard(link)
        raise HttpProblem(
            502, "nothing answers at this port of the sandbox: start the desktop in it"
        ) from error


def _principal(link: ViewLink) -> Principal:
    return Principal(account=link.account, key=link.key, scopes=frozenset({"admin"}))


async def _open_link(call: ApiCall[NoContent, NoContent]) -> ViewLink:
    """Return the valid link of a request; a revoked key ends its links. Anything else is the same 404."""
    links = call.services.environment_resolver.view_links
    link = links.verify(call.path["link"], now=utc_now()) if links is not None else None
    if link is None:
        raise _not_found()
    if link.key and not await call.context.api_key_authenticator.is_valid(_principal(link)):
        raise _not_found()
    return link


def _names(path: str) -> list[str]:
    names = path.split("/")
    if any(one in ("", ".", "..") for one in names):
        raise _not_found()
    return names


def _query(requested: URL, address: URL) -> str:
    """Return a request's query; names that the address of the port has keep the address's values."""
    given = requested.raw_query_string.split("&")
    kept = [one for one in given if one and unquote_plus(one.partition("=")[0]) not in address.query]
    return "&".join([*kept, *([address.raw_query_string] if address.query else [])])


def _not_found() -> HttpProblem:
    return not_found("there is no such view, or the link has expired")


async def _relay_file(
    request: web.Request, session: aiohttp.ClientSession, target: URL
) -> web.StreamResponse:
    headers = {"Accept-Encoding": "identity"}
    async with session.get(target, headers=headers, allow_redirects=False) as answer:
        if answer.status != 200:  # noqa: PLR2004 - OK
            raise _not_found()
        if (answer.content_length or 0) > MAX_PAGE_BYTES:
            raise HttpProblem(502, f"the file has more than {MAX_PAGE_BYTES} bytes: {_OTHER_WAY}")
        response = web.StreamResponse(headers=_HEADERS)
        response.headers["Content-Type"] = answer.headers.get("Content-Type", "application/octet-stream")
        await response.prepare(request)
        try:
            await _copy_body(answer, response)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.info("live_view.file_broken", error=str(error) or type(error).__name__)
            if request.transport is not None:
                request.transport.abort()  # the status was sent: only so the end is no regular one
            return response
    await response.write_eof()
    return response


async def _copy_body(answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    """Copy a body to its end; raises aiohttp.ClientError for one that breaks or is too long, TimeoutError."""
    left = MAX_PAGE_BYTES
    if answer.content_type == "text/html":
        beginning = await _beginning(answer)
        left -= len(beginning)
        await response.write(with_storage(beginning))
    async for chunk in answer.content.iter_chunked(CHUNK):
        left -= len(chunk)
        if left < 0:
            raise aiohttp.ClientPayloadError(f"it has more than {MAX_PAGE_BYTES} bytes")
        await response.write(chunk)


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    """Read so much of a page that its head is complete, or all of a shorter page."""
    beginning = b""
    while len(beginning) < HEAD_BYTES and (chunk := await answer.content.read(CHUNK)):
        beginning += chunk
    return beginning


_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class _SocketEnd:
    """The code and reason with which the other side of a relayed WebSocket is closed (RFC 6455, 7.4)."""

    code: int
    reason: str = ""


async def _relay_socket(
    request: web.Request, session: aiohttp.ClientSession, target: URL, reader: StreamReader
) -> web.StreamResponse:
    offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
    protocols = [one.strip() for one in offered if one.strip()]
    async with session.ws_connect(target, protocols=protocols, max_msg_size=MAX_FRAME_BYTES) as sandbox:
        chosen = (sandbox.protocol,) if sandbox.protocol else ()
        person = web.WebSocketResponse(
            protocols=chosen, max_msg_size=MAX_FRAME_BYTES, heartbeat=HEARTBEAT_SECONDS
        )
        await person.prepare(request)
        ways: dict[asyncio.Task[_SocketEnd], _Socket] = {
            asyncio.create_task(_copy(person, sandbox)): sandbox,
            asyncio.create_task(_copy(sandbox, person)): person,
        }
        ends: list[asyncio.Future[Any]] = [*ways, reader.closed]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for way in [one for one in ways if one.done()]:
                await ways[way].close(code=way.result().code, message=way.result().reason.encode())
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        await person.close(code=reader.code, message=reader.reason.encode())
    return person


async def _copy(source: _Socket, target: _Socket) -> _SocketEnd:
    """Copy the frames of one side until either closes, and return how the other one is to be closed."""
    with suppress(ConnectionError):
        while (message := await source.receive()).type in _FRAMES:
            if message.type is aiohttp.WSMsgType.BINARY:
                await target.send_bytes(message.data)
            else:
                await target.send_str(message.data)
        if message.type is aiohttp.WSMsgType.CLOSE and message.data != _ABNORMAL:
            return _SocketEnd(code=message.data or aiohttp.WSCloseCode.OK, reason=message.extra or "")
        if message.type is aiohttp.WSMsgType.ERROR and isinstance(message.data, aiohttp.WebSocketError):
            return _SocketEnd(code=message.data.code)
    return _SocketEnd(code=aiohttp.WSCloseCode.INTERNAL_ERROR, reason="the connection was cut")


ROUTES = (
    ApiRoute(
        method="GET",
        path=f"{PATH}/{{link}}/{PATH_PARAMETER}",
        access=SignedLinkAccess(),
        handler=show,
        summary="use the desktop of a sandbox by its link",
        raw=True,
        media_type="text/html",
        error_responses={502: "nothing answers at the port", 503: "the sandbox cannot be reached"},
        tag="live sandboxes",
    ),
)
"""The route of live views."""
