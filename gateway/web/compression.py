"""Compression of complete responses that are text; streams and files are sent as they are."""

from __future__ import annotations

import asyncio
import gzip
from http import HTTPStatus

from aiohttp import hdrs, web

from gateway.web.http.preconditions import GZIP, VERSIONED, prefers_gzip
from gateway.web.http.problems import Handler

MIN_BYTES = 1024
"""The smallest body that is compressed."""
_IN_THREAD_ABOVE = 32 * 1024
"""Bytes that take the event loop longer than a thread's start."""
_LEVEL = 5


@web.middleware
async def compress_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Compress the response if it is a text of some length and the client accepts gzip."""
    response = await handler(request)
    if not isinstance(response, web.Response) or not _is_compressible(response):
        return response
    _vary(response)
    if not prefers_gzip(request) or response.status == HTTPStatus.NOT_MODIFIED:
        return response
    response.body = await _compress(response.body)
    response.headers[hdrs.CONTENT_ENCODING] = GZIP
    return response


def _is_compressible(response: web.Response) -> bool:
    """Return whether to compress a response; a file with an ETag is the same for all clients.

    A versioned resource has a tag for its gzip form, so that form does not depend on its size.
    """
    if VERSIONED in response:
        return not response.prepared
    if response.prepared or not isinstance(response.body, bytes) or len(response.body) < MIN_BYTES:
        return False
    if any(name in response.headers for name in (hdrs.CONTENT_ENCODING, hdrs.ETAG, hdrs.CONTENT_RANGE)):
        return False
    return response.content_type.endswith("json") or response.content_type.startswith("text/")


async def _compress(body: object) -> bytes:
    assert isinstance(body, bytes)
    if len(body) <= _IN_THREAD_ABOVE:
        return gzip.compress(body, _LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, _LEVEL, mtime=0)


def _vary(response: web.Response) -> None:
    others = response.headers.get(hdrs.VARY)
    response.headers[hdrs.VARY] = f"{others}, {hdrs.ACCEPT_ENCODING}" if others else str(hdrs.ACCEPT_ENCODING)
