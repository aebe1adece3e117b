"""Files behind signed links: download by signature or key, and upload for messages."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import quote

from aiohttp import hdrs, web
from pydantic import Field, StrictStr

from delivery.database.clock import utc_now
from gateway.files import media_types
from gateway.files.blob_store import BlobNotFound
from gateway.store.conversations.files import FileRow
from gateway.web.http import request_body
from gateway.web.http.auth import KeyAccess, SignedLinkAccess, bearer_token
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import AUTHENTICATOR, ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel


class SignedLinkQuery(RequestModel):
    """The signature of a link."""

    expires: StrictStr = ""
    signature: StrictStr = ""


class UploadQuery(RequestModel):
    """The name of an uploaded file."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=1000)]


class UploadedFileResponse(ResponseModel):
    """A stored file with its link, which messages can attach."""

    id: str
    name: str
    size: int
    type: str
    sha256: str
    url: str
    expires: str


async def download(call: ApiCall[NoContent, SignedLinkQuery]) -> web.StreamResponse:
    """Return a file's bytes as a download that browsers never render."""
    row = await _authorized_file(call)
    if row is None or row.sha256 is None:
        raise _link_not_found()
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


async def _chunks(call: ApiCall[NoContent, SignedLinkQuery], digest: str) -> Any:
    try:
        async for chunk in call.services.file_services.file_store.read_chunks(digest):
            yield chunk
    except BlobNotFound:
        raise _link_not_found() from None


def _link_not_found() -> HttpProblem:
    return not_found("there is no such file, or the link has expired")


async def _authorized_file(call: ApiCall[NoContent, SignedLinkQuery]) -> FileRow | None:
    """Return the file for a valid link or its owner's key; anything else is the same 404."""
    filing, file, query = call.services.file_services, call.path["id"], call.query
    if filing.links.is_valid(file, query.expires, query.signature, now=utc_now()):
        return await filing.file_store.get(file)
    if hdrs.AUTHORIZATION not in call.request.headers:
        return None
    authenticator = call.request.app[AUTHENTICATOR]
    principal = await authenticator.authenticate(call.request, bearer_token(call.request))
    row = await filing.file_store.get(file)
    return (
        row if row is not None and row.account == principal.account and "read" in principal.scopes else None
    )


def _headers(row: FileRow) -> dict[str, str]:
    return {
        hdrs.CONTENT_TYPE: media_types.BINARY if row.type in media_types.ACTIVE_CONTENT else row.type,
        hdrs.CONTENT_DISPOSITION: f"attachment; filename*=UTF-8''{quote(row.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Referrer-Policy": "no-referrer",
        hdrs.CACHE_CONTROL: "private, no-store",
    }


async def upload(call: ApiCall[NoContent, UploadQuery]) -> UploadedFileResponse:
    """Store a file that a message or turn can attach."""
    filing, bounds = call.services.file_services, call.context.limits
    content = await request_body.read_bytes(
        call.request,
        limit=min(filing.settings.attachment_bytes, bounds.file_bytes),
        deadline=bounds.body_deadline * 12,
    )
    row = await filing.file_store.save(call.account, call.query.name, content)
    return UploadedFileResponse.model_validate(filing.links.to_response(row))


ROUTES = (
    ApiRoute(
        method="GET",
        path="/files/{id}/{name}",
        access=SignedLinkAccess(),
        handler=download,
        summary="download a file by its link or with its owner's key",
        query_model=SignedLinkQuery,
        media_type=media_types.BINARY,
        tag="files",
    ),
    ApiRoute(
        method="POST",
        path="/files",
        access=KeyAccess("chat"),
        handler=upload,
        summary="upload a file that messages can attach by its url",
        query_model=UploadQuery,
        response_model=UploadedFileResponse,
        raw=True,
        status=201,
        error_responses={413: "it is too large, or the account's storage is full"},
        tag="files",
    ),
)
