"""The console's files, each with strict security headers."""

from __future__ import annotations

from aiohttp import web

from gateway import console
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, NoContent


async def serve(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Return a file of the console, or 304 when the browser has this version."""
    name = call.path.get("file", "") or console.INDEX
    try:
        asset = console.load(name)
    except (KeyError, FileNotFoundError):
        raise not_found() from None
    is_compressed = "gzip" in call.request.headers.get("Accept-Encoding", "").lower()
    etag = asset.compressed_etag if is_compressed else asset.etag
    headers = {**console.HEADERS, "ETag": etag}
    if etag in call.request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = asset.media_type
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=asset.compressed if is_compressed else asset.body, headers=headers)
