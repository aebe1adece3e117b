"""Forward single HTTP requests of a sandbox: plain ones, and those to hosts with a credential."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

from egress.policy import EgressRefused, refusal
from egress.proxy.request_head import InvalidRequest, Target, parse_host
from egress.proxy.rules import EgressRules
from egress.proxy.signing import (
    OutgoingRequest,
    RequestSigner,
    SignedHeaders,
    SigningFailed,
    check_host,
)
from egress.proxy.tunnel import CHUNK_BYTES, ByteAllowance

log = structlog.get_logger(__name__)

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OWN_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the client would add; only those of the sandbox are sent."""
_REFUSED_METHODS = frozenset({"CONNECT", "TRACE"})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PLAIN_PORT = 80
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarder:
    """Forwards the requests of one sandbox by a session whose connections its rules check."""

    get_rules: Callable[[], EgressRules]
    session: aiohttp.ClientSession
    get_signer: Callable[[], RequestSigner]
    allowance: ByteAllowance
    tls: ssl.SSLContext | bool = True
    """What verifies the certificates of hosts with a credential."""
    plain_targets: list[Target] = field(default_factory=list)
    """The targets of the plain requests that are being answered."""

    async def forward_plain(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request whose target is an absolute http URL, the form for proxies."""
        try:
            url = _plain_url(request)
            target = Target(host=parse_host(url.raw_host or ""), port=url.port or _PLAIN_PORT)
            self.plain_targets.append(target)
            try:
                await self._check_plain(target)
                return await self._forward(request, url, {})
            finally:
                self.plain_targets.remove(target)
        except (InvalidRequest, ValueError) as error:
            return _refused(400, str(error))
        except EgressRefused as error:
            return _refused(403, error.why)

    async def _check_plain(self, target: Target) -> None:
        """Raise EgressRefused unless a plain request to a target is allowed."""
        host, signer = target.host, self.get_signer()
        if await signer.has_credential(host):
            raise EgressRefused(f"Requests with the credential for {host} need https: use https://{host}/.")
        await check_host(self.get_rules(), signer, host, target.port)

    async def forward_signed(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """Answer a request to a host whose TLS the proxy terminates, with the credential's headers added."""
        try:
            url, signed = await self._sign(request, target)
            response = await self._forward(request, url, dict(signed.headers))
        except (InvalidRequest, ValueError) as error:
            return _refused(400, str(error))
        except EgressRefused as error:
            return _refused(403, error.why)
        except SigningFailed as error:
            return _refused(502, str(error))
        if response.status == _UNAUTHORIZED:
            signed.on_refused()
        return response

    async def _sign(self, request: web.BaseRequest, target: Target) -> tuple[URL, SignedHeaders]:
        """Return the URL and the added headers; raises InvalidRequest, EgressRefused, SigningFailed."""
        if not request.raw_path.startswith("/") or request.method in _REFUSED_METHODS:
            raise InvalidRequest("The request needs a path, and another method than TRACE.")
        url = URL(f"https://{_netloc(target)}{request.raw_path}", encoded=True)
        asked = OutgoingRequest(host=target.host, method=request.method, path=url.raw_path)
        signed = await self.get_signer().sign(asked)
        if signed is None:
            raise EgressRefused(f"There is no credential for {target.host} any more: connect again.")
        return url, signed

    async def _forward(self, request: web.BaseRequest, url: URL, added: dict[str, str]) -> web.StreamResponse:
        replaced = {name.lower() for name in added}
        kept = [one for one in _end_to_end(request.headers) if one[0].lower() not in replaced]
        headers = [*kept, *added.items()]
        try:
            async with self.session.request(
                request.method,
                url,
                headers=headers,
                data=self._body(request) if request.can_read_body else None,
                allow_redirects=False,
                skip_auto_headers=_OWN_HEADERS,
                ssl=self.tls,
            ) as answer:
                return await self._answer(request, answer)
        except aiohttp.ClientError as error:
            refused = refusal(error)
            if refused is not None:
                raise EgressRefused(f"{refused.why} {url.host} has that address.") from error
            return _refused(502, f"{url.host} did not answer: {type(error).__name__}.")
        except TimeoutError:
            return _refused(504, f"{url.host} did not answer in time.")

    async def _body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0
        async for chunk in request.content.iter_chunked(CHUNK_BYTES):
            yield chunk
            await self.allowance.spend(len(chunk))

    async def _answer(self, request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in _end_to_end(answer.headers):
            response.headers.add(name, value)
        if "Content-Length" not in answer.headers and request.version >= aiohttp.HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(request)
        async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
            await response.write(chunk)
            await self.allowance.spend(len(chunk))
        await response.write_eof()
        return response


def _plain_url(request: web.BaseRequest) -> URL:
    """Return the URL of a plain request; raises InvalidRequest."""
    url = URL(request.raw_path, encoded=True)
    if url.scheme != "http" or not url.raw_host:
        raise InvalidRequest("The target must be an absolute URL such as http://example.org/.")
    return url.with_fragment(None)


def _end_to_end(headers: Any) -> list[tuple[str, str]]:
    """Return the headers that are not only for the next connection."""
    named = {one.strip().lower() for value in headers.getall("Connection", ()) for one in value.split(",")}
    dropped = _HOP_BY_HOP | named
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]


def _refused(status: int, sentence: str) -> web.Response:
    response = web.Response(status=status, text=f"{sentence}\n")
    response.force_close()
    return response


def _netloc(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}"


class ConnectionServer(web.Server):
    """aiohttp's HTTP server for one connection; `ended` is set when it is lost."""

    def __init__(self, handler: Any) -> None:
        super().__init__(handler, access_log=None, auto_decompress=False)
        self.ended = asyncio.Event()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Note the end of the connection."""
        super().connection_lost(handler, exc)
        self.ended.set()
