"""Files behind links: fetched with a link's signature or its owner's key, and put there for messages."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import quote

from aiohttp import hdrs, web
from pydantic import Field, StrictStr

from delivery.database.clock import utc_now
from gateway.files import media_types
from gateway.files.blob_store import Absent
from gateway.store.conversations.files import FileRow
from gateway.web.http import request_body
from gateway.web.http.auth import Key, Signed, bearer_of
from gateway.web.http.problems import Problem, not_found
from gateway.web.http.route import DOOR, Call, Nothing, Route, Shown, Strict


class Signature(Strict):
    """What a link is signed with."""

    expires: StrictStr = ""
    signature: StrictStr = ""


class Named(Strict):
    """What an uploaded file is called."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=1000)]


class FileTold(Shown):
    """A file with a link to it, to be named as an attachment."""

    id: str
    name: str
    size: int
    type: str
    sha256: str
    url: str
    expires: str


async def fetch(call: Call[Nothing, Signature]) -> web.StreamResponse:
    """Give a file's bytes, always to be stored and never to be shown."""
    row = await _allowed(call)
    if row is None or row.sha256 is None:
        raise _nothing()
    async with aclosing(_chunks(call, row.sha256)) as chunks:
        first = await anext(chunks, b"")
        response = web.StreamResponse(headers=_headers(row))
        response.content_length = row.size
        await response.prepare(call.request)
        await response.write(first)
        async for chunk in chunks:
            await response.write(chunk)
    await response.write_eof()
    return response


async def _chunks(call: Call[Nothing, Signature], digest: str) -> Any:
    try:
        async for chunk in call.core.filing.shelf.open(digest):
            yield chunk
    except Absent:
        raise _nothing() from None


def _nothing() -> Problem:
    return not_found("there is no such file, or the link no longer holds")


async def _allowed(call: Call[Nothing, Signature]) -> FileRow | None:
    """Return the file if the link is good or who asks owns it; all else is the same nothing."""
    filing, file, query = call.core.filing, call.path["id"], call.query
    if filing.links.is_valid(file, query.expires, query.signature, now=utc_now()):
        return await filing.shelf.find(file)
    if hdrs.AUTHORIZATION not in call.request.headers:
        return None
    door = call.request.app[DOOR]
    principal = await door.authenticate(call.request, bearer_of(call.request))
    row = await filing.shelf.find(file)
    return (
        row if row is not None and row.account == principal.account and "read" in principal.scopes else None
    )


def _headers(row: FileRow) -> dict[str, str]:
    return {
        hdrs.CONTENT_TYPE: media_types.BINARY if row.type in media_types.ACTIVE else row.type,
        hdrs.CONTENT_DISPOSITION: f"attachment; filename*=UTF-8''{quote(row.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Referrer-Policy": "no-referrer",
        hdrs.CACHE_CONTROL: "private, no-store",
    }


async def upload(call: Call[Nothing, Named]) -> FileTold:
    """Keep a file that a message or turn is to name."""
    filing, bounds = call.core.filing, call.surface.bounds
    content = await request_body.read_bytes(
        call.request,
        limit=min(filing.settings.attachment_bytes, bounds.file_bytes),
        deadline=bounds.body_deadline * 12,
    )
    row = await filing.shelf.keep(call.account, call.query.name, content)
    return FileTold.model_validate(filing.links.shape(row))


ROUTES = (
    Route(
        method="GET",
        path="/files/{id}/{name}",
        access=Signed(),
        handler=fetch,
        summary="fetch a file by its link, or with its owner's key",
        query=Signature,
        media=media_types.BINARY,
        tag="files",
    ),
    Route(
        method="POST",
        path="/files",
        access=Key("chat"),
        handler=upload,
        summary="keep a file for a message to name by its url",
        query=Named,
        gives=FileTold,
        raw=True,
        status=201,
        tag="files",
    ),
)
