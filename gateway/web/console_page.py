"""The console's files, each with strict security headers, and the exchange of a one-time code."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from pydantic import Field, StrictStr

from gateway import console
from gateway.web.http.preconditions import accepts_gzip
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel


class EntryRequest(RequestModel):
    """The code of the link that `dovecote serve` prints."""

    code: Annotated[StrictStr, Field(min_length=1, max_length=100, repr=False)]


class EntryResponse(ResponseModel):
    """The gateway's own key."""

    key: str


async def enter(call: ApiCall[EntryRequest, NoContent]) -> EntryResponse:
    """Exchange a one-time code for the gateway's key; 404 when it was used, is too old or never was."""
    codes = call.context.entry_codes
    key = codes.redeem(call.body.code) if codes is not None else None
    if key is None:
        raise not_found("this link was used before or is too old; restart the gateway for a new one")
    return EntryResponse(key=key)


async def serve(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Return a file of the console, or 304 when the browser has this version."""
    name = call.path.get("file", "") or console.INDEX
    try:
        asset = console.load(name)
    except (KeyError, FileNotFoundError):
        raise not_found() from None
    is_compressed = accepts_gzip(call.request.headers.get("Accept-Encoding", ""))
    etag = asset.compressed_etag if is_compressed else asset.etag
    headers = {**console.HEADERS, "ETag": etag}
    if etag in call.request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = asset.media_type
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=asset.compressed if is_compressed else asset.body, headers=headers)
