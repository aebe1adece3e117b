"""Files behind signed links: download by signature or key, and upload for messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from aiohttp import hdrs, web
from pydantic import Field, StrictStr

from delivery.database.clock import utc_now
from gateway.files import media_types
from gateway.files.storage.blob_store import BlobNotFound
from gateway.store.conversations.files import FileRow
from gateway.web.api.files.ranges import range_headers, wanted_range
from gateway.web.http import request_body
from gateway.web.http.auth import KeyAccess, SignedLinkAccess, bearer_token
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import AUTHENTICATOR, ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel

MESSAGE_PREFIX, TEXT_NAME = "msg_", "answer.txt"


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
    expires: Annotated[str, Field(json_schema_extra={"format": "date-time"})]


async def download(call: ApiCall[NoContent, SignedLinkQuery]) -> web.StreamResponse:
    """Return a file's bytes as a download that browsers never render; of a message's link, its text."""
    if call.path["id"].startswith(MESSAGE_PREFIX):
        return await _send_text(call)
    row = await _authorized_file(call)
    if row is None:
        raise _link_not_found()
    return await send_file(call, row)


async def _send_text(call: ApiCall[NoContent, SignedLinkQuery]) -> web.Response:
    """Return the text of a message whose link is valid, which a chat could not show whole."""
    filing, message, query = call.services.file_services, call.path["id"], call.query
    is_valid = filing.links.is_valid(message, query.expires, query.signature, now=utc_now())
    content = await filing.read_content(message) if is_valid else None
    if content is None:
        raise _link_not_found()
    return web.Response(body=content, headers=_headers(TEXT_NAME, "text/plain; charset=utf-8"))


async def send_file(call: ApiCall[Any, Any], row: FileRow) -> web.StreamResponse:
    """Send a stored file as a download, or the range of it that the request names.

    Raises HttpProblem if its bytes are gone, or the range is outside the file.
    """
    if row.sha256 is None:
        raise _link_not_found()
    tag, request = f'"{row.sha256}"', call.request
    headers = {**_headers(row.name, row.type), hdrs.ETAG: tag}
    if any(one.value in (row.sha256, "*") for one in request.if_none_match or ()):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    start, stop = wanted_range(request, row.size, tag)
    headers |= range_headers(start, stop, row.size)
    status = HTTPStatus.PARTIAL_CONTENT if hdrs.CONTENT_RANGE in headers else HTTPStatus.OK
    async with aclosing(_cut(_chunks(call, row.sha256), start, stop)) as chunks:
        first = await anext(chunks, b"")
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = stop - start
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            await response.write(first)
            async for chunk in chunks:
                await response.write(chunk)
    await response.write_eof()
    return response


async def _cut(chunks: AsyncGenerator[bytes, None], start: int, stop: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes from `start` up to `stop`."""
    position = 0
    async with aclosing(chunks) as given:
        async for chunk in given:
            part = chunk[max(0, start - position) : max(0, stop - position)]
            position += len(chunk)
            if part:
                yield part
            if position >= stop:
                return


async def _chunks(call: ApiCall[Any, Any], digest: str) -> AsyncGenerator[bytes, None]:
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


def _headers(name: str, media_type: str) -> dict[str, str]:
    return {
        hdrs.CONTENT_TYPE: media_types.BINARY if media_type in media_types.ACTIVE_CONTENT else media_type,
        hdrs.CONTENT_DISPOSITION: f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Referrer-Policy": "no-referrer",
        hdrs.CACHE_CONTROL: "private, no-store",
    }


async def upload(call: ApiCall[NoContent, UploadQuery]) -> UploadedFileResponse:
    """Store a file that a message or turn can attach."""
    filing, bounds = call.services.file_services, call.context.limits
    content = await request_body.read_file(
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
        media_type=media_types.ANY,
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
