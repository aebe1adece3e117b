"""Downloads of a part of a file (RFC 9110, 14), so that a client continues one that was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import hdrs, web

from gateway.web.http.preconditions import etag_of, not_modified
from gateway.web.http.problems import HttpProblem
from gateway.web.http.route import NO_STORE


def content_response(request: web.Request, content: bytes, headers: Mapping[str, str]) -> web.Response:
    """Return a file's content, the range of it that the request names, or the 304 for a version it knows."""
    tag, size = etag_of(content), len(content)
    unchanged = not_modified(request, tag, NO_STORE)
    if unchanged is not None:
        return unchanged
    start, stop = wanted_range(request, size, tag)
    return web.Response(
        status=HTTPStatus.OK if stop - start == size else HTTPStatus.PARTIAL_CONTENT,
        body=content[start:stop],
        headers={**headers, hdrs.ETAG: tag, **range_headers(start, stop, size)},
    )


def range_headers(start: int, stop: int, size: int) -> dict[str, str]:
    """Return the headers that describe these bytes of a file."""
    headers: dict[str, str] = {hdrs.ACCEPT_RANGES: "bytes"}
    if stop - start != size:
        headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{size}"
    return headers


def wanted_range(request: web.Request, size: int, tag: str) -> tuple[int, int]:
    """Return the first byte that the request wants and the one after the last; 416 for none of the file.

    Several ranges, an unknown unit, a range of another version and HEAD mean the whole file (RFC 9110, 14.2).
    """
    if request.method == hdrs.METH_HEAD or request.headers.get(hdrs.IF_RANGE, tag) != tag:
        return 0, size
    try:
        wanted = request.http_range
    except ValueError:
        return 0, size
    if (wanted.start, wanted.stop) == (None, None):
        return 0, size
    start, stop, _ = wanted.indices(size)
    if start >= stop:
        raise HttpProblem(416, f"the file has {size} bytes", headers={hdrs.CONTENT_RANGE: f"bytes */{size}"})
    return start, stop
