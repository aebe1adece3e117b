"""Upload a workspace file in parts: begin, send parts at their offsets, and go on after a lost connection."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr

from gateway.files.resumable_uploads import (
    MAX_OPEN,
    MAX_PART_BYTES,
    ContentMismatch,
    PartMismatch,
    ResumableUploads,
    TooManyUploads,
    Upload,
)
from gateway.files.storage.storage_quota import StorageFull
from gateway.web.api.files.workspace_files import check_quota, plain_path, translate_errors, workspace_store
from gateway.web.api.files.workspace_operations import FilePath
from gateway.web.http import request_body
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel

OFFSET = "Upload-Offset"
_MAX_DIGITS = 10


class UploadRequest(RequestModel):
    """A file to upload: its path, its size in bytes and, if known, the SHA-256 of its content."""

    path: FilePath
    size: Annotated[StrictInt, Field(ge=0, le=2**33)]
    sha256: Annotated[StrictStr, Field(pattern="^([0-9a-f]{64})?$")] = ""


class UploadResponse(ResponseModel):
    """An upload: `offset` is the byte with which the next part begins."""

    id: str
    path: str
    size: int
    offset: int
    complete: bool
    part_bytes: int
    expires_at: datetime


async def begin_upload(call: ApiCall[UploadRequest, NoContent]) -> UploadResponse:
    """Begin an upload after its size is checked against the quotas."""
    _, space = await workspace_store(call)
    path, size, most = plain_path(call.body.path, "/path"), call.body.size, call.context.limits.file_bytes
    if path == ".":
        raise invalid_field("/path", "a file needs a name")
    if size > most:
        raise HttpProblem(413, f"the file is larger than {most} bytes")
    await check_quota(call, path, size)
    await _check_storage(call, size)
    try:
        upload = await _uploads(call).begin(call.account, space, path, size=size, digest=call.body.sha256)
    except TooManyUploads:
        raise HttpProblem(
            429, f"the account has {MAX_OPEN} uploads that are not complete: end or delete some"
        ) from None
    return _to_response(upload)


async def _check_storage(call: ApiCall[Any, Any], size: int) -> None:
    if call.context.storage_quota is None:
        return
    now = await call.context.storage_quota.report(call.account)
    if now.limit and now.used + size > now.limit:
        raise StorageFull(used=now.used, size=size, limit=now.limit)


async def get_upload(call: ApiCall[NoContent, NoContent]) -> UploadResponse:
    """Return how far an upload is."""
    return _to_response(await _require(call))


async def append_part(call: ApiCall[NoContent, NoContent]) -> UploadResponse:
    """Store a part; with the last one the file is written."""
    upload, offset = await _require(call), _offset(call)
    content = await request_body.read_file(
        call.request, limit=MAX_PART_BYTES, deadline=call.context.limits.body_deadline * 12
    )
    try:
        upload = await _uploads(call).append(call.account, upload, offset, content)
    except PartMismatch as error:
        raise HttpProblem(409, str(error), headers={OFFSET: str(error.offset)}) from None
    except ContentMismatch as error:
        raise HttpProblem(422, str(error)) from None
    if upload.is_complete:
        await _complete(call, upload)
    return _to_response(upload)


async def _complete(call: ApiCall[NoContent, NoContent], upload: Upload) -> None:
    """Write the file, then delete the upload; a kill in between leaves an upload that any part completes."""
    store, space = await workspace_store(call)
    await check_quota(call, upload.path, upload.size)
    uploads = _uploads(call)
    try:
        content = await uploads.read(upload)
    except ContentMismatch as error:
        await uploads.end(upload)
        raise HttpProblem(422, str(error)) from None
    await translate_errors(store.write(space, upload.path, content))
    await uploads.end(upload)


async def delete_upload(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete an upload that is not complete, with its parts."""
    await _uploads(call).end(await _require(call))


async def _require(call: ApiCall[NoContent, NoContent]) -> Upload:
    _, space = await workspace_store(call)
    found = await _uploads(call).get(call.account, call.path["upload"])
    if found is None or found.workspace != space:
        raise not_found("there is no such upload: it is complete, was deleted, or has expired")
    return found


def _offset(call: ApiCall[NoContent, NoContent]) -> int:
    text = call.request.headers.get(OFFSET, "")
    if not re.fullmatch(rf"[0-9]{{1,{_MAX_DIGITS}}}", text):
        raise HttpProblem(400, f"{OFFSET} must be the byte with which the part begins")
    return int(text)


def _uploads(call: ApiCall[Any, Any]) -> ResumableUploads:
    return ResumableUploads(call.context.database, call.services.file_services.file_store)


def _to_response(upload: Upload) -> UploadResponse:
    return UploadResponse(
        id=upload.id,
        path=upload.path,
        size=upload.size,
        offset=upload.offset,
        complete=upload.is_complete,
        part_bytes=MAX_PART_BYTES,
        expires_at=upload.expires_at,
    )


_COLLECTION = "/accounts/me/workspaces/{id}/uploads"
_FULL = "the workspace or the account's storage is full"

ROUTES = (
    ApiRoute(
        method="POST",
        path=_COLLECTION,
        access=KeyAccess("admin"),
        handler=begin_upload,
        summary="begin an upload in parts",
        request_model=UploadRequest,
        response_model=UploadResponse,
        status=201,
        error_responses={413: f"it is too large, or {_FULL}", 429: "too many uploads are not complete"},
        tag="workspaces",
    ),
    ApiRoute(
        method="GET",
        path=f"{_COLLECTION}/{{upload}}",
        access=KeyAccess("admin"),
        handler=get_upload,
        summary="show how far an upload is",
        response_model=UploadResponse,
        tag="workspaces",
    ),
    ApiRoute(
        method="PATCH",
        path=f"{_COLLECTION}/{{upload}}",
        access=KeyAccess("admin"),
        handler=append_part,
        summary="send the next part of an upload",
        raw=True,
        required_headers={OFFSET: "the byte with which the part begins"},
        response_model=UploadResponse,
        error_responses={
            409: "the part does not begin at the upload's offset, or a directory is at the path",
            413: f"the part is too large, or {_FULL}",
        },
        tag="workspaces",
    ),
    ApiRoute(
        method="DELETE",
        path=f"{_COLLECTION}/{{upload}}",
        access=KeyAccess("admin"),
        handler=delete_upload,
        summary="delete an upload that is not complete",
        status=204,
        tag="workspaces",
    ),
)
