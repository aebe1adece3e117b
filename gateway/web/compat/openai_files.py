"""`/v1/files`: uploaded files, which messages name by their id."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import Field, StrictStr, ValidationError

from gateway.files import media_types
from gateway.files.storage.storage_quota import StorageFull
from gateway.store.conversations import uploads
from gateway.store.conversations.files import FileRow, FileState
from gateway.web.api.files import downloads
from gateway.web.compat import openai_ids
from gateway.web.compat.openai_messages import LenientRequest
from gateway.web.http import idempotency, request_body
from gateway.web.http.attachments import AttachmentCreate
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import HttpProblem, invalid_field, not_found, storage_full
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel, to_response

MAX_FIELD = 1000
"""Bytes of a field of the form that is no file."""
MAX_FIELDS = 20
"""Parts of a form."""
_PURPOSE = "user_data"
"""The purpose of an upload whose form names none."""


class FileObject(ResponseModel):
    """An uploaded file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(ResponseModel):
    """A page of uploaded files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(ResponseModel):
    """A deleted file."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class ExpiresAfter(LenientRequest):
    """When an upload is deleted: so many seconds after it was created."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class UploadForm(LenientRequest):
    """The fields of an upload; further ones are ignored.

    The fields of `expires_after` are `expires_after[anchor]` and `expires_after[seconds]`.
    """

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    purpose: Annotated[str, Field(min_length=1, max_length=64)] = _PURPOSE
    expires_after: ExpiresAfter | None = None


class FileQuery(LenientRequest):
    """A page of the list; `after` is the last id of the previous page."""

    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000
    order: Literal["asc", "desc"] = "desc"
    after: Annotated[StrictStr, Field(max_length=60)] | None = None
    purpose: Annotated[StrictStr, Field(max_length=64)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The fields of an upload."""

    name: str
    content: bytes
    purpose: str
    lifetime: timedelta | None

    @property
    def identity(self) -> bytes:
        """What is the same in a repeated request."""
        parts = [self.name, self.purpose, *([str(self.lifetime)] if self.lifetime else [])]
        return b"\n".join([*(part.encode() for part in parts), hashlib.sha256(self.content).digest()])


async def upload_file(call: ApiCall[NoContent, NoContent]) -> FileObject | web.Response:
    """Store a file of a form; the same Idempotency-Key with the same file is the same upload."""
    form = await _read_form(call)
    key = idempotency.parse_key(call.request)
    if key is None:
        return await _save(call, form)

    async def perform() -> web.Response:
        response = to_response(_UPLOAD, await _save(call, form))
        assert isinstance(response, web.Response)
        return response

    digest = idempotency.request_digest(call.request, form.identity)
    return await idempotency.IdempotentRequest(call.context, call.account, key, digest).run(perform)


async def _save(call: ApiCall[NoContent, NoContent], form: _Form) -> FileObject:
    try:
        file_store = call.services.file_services.file_store
        row = await file_store.save(
            call.account, form.name, form.content, lifetime=form.lifetime, purpose=form.purpose
        )
    except StorageFull as error:
        raise storage_full(str(error), "/file") from None
    return _to_object(row)


async def _read_form(call: ApiCall[NoContent, NoContent]) -> _Form:
    """Return the fields of a multipart form, with limits on its size and time; raises HttpProblem."""
    bounds = call.context.limits
    limit = min(call.services.file_services.settings.attachment_bytes, bounds.file_bytes)
    if not call.request.content_type.startswith("multipart/"):
        raise HttpProblem(415, "the Content-Type must be multipart/form-data", close=True)
    fields: dict[str, bytes] = {}
    name, count = "", 0
    try:
        async with asyncio.timeout(bounds.body_deadline * 12):
            async for part in await call.request.multipart():
                count += 1
                if count > MAX_FIELDS:
                    raise HttpProblem(413, f"a form has at most {MAX_FIELDS} fields", close=True)
                if not isinstance(part, BodyPartReader) or part.name is None:
                    raise invalid_field("", "a part of the form has no name")
                is_file = part.name == "file"
                fields[part.name] = await _read_part(part, limit if is_file else MAX_FIELD)
                name = part.filename or name if is_file else name
    except TimeoutError:
        raise HttpProblem(408, "the body did not arrive in time", close=True) from None
    except (ValueError, HttpProcessingError, web.RequestPayloadError) as error:
        raise HttpProblem(400, "the body is no valid multipart form", close=True) from error
    if "file" not in fields or not name:
        raise invalid_field("/file", "the form needs a file with a name in the field `file`")
    return _Form(name=name, content=fields["file"], purpose=_purpose(fields), lifetime=_lifetime(fields))


def _purpose(fields: Mapping[str, bytes]) -> str:
    """Return what the client says that an upload is for; raises HttpProblem."""
    if "purpose" not in fields:
        return _PURPOSE
    try:
        purpose = fields["purpose"].decode("utf-8", "replace")
        return UploadForm.model_validate({"file": "", "purpose": purpose}).purpose
    except ValidationError as error:
        raise invalid_field("/purpose", error.errors()[0]["msg"]) from None


def _lifetime(fields: Mapping[str, bytes]) -> timedelta | None:
    """Return the time until an upload is deleted; None: no time was given. Raises HttpProblem."""
    given = {
        name: fields[field].decode("utf-8", "replace")
        for name in ExpiresAfter.model_fields
        if (field := f"expires_after[{name}]") in fields
    }
    if not given:
        return None
    try:
        return timedelta(seconds=ExpiresAfter.model_validate(given).seconds)
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid_field(f"/expires_after/{first['loc'][0]}", first["msg"]) from None


async def _read_part(part: BodyPartReader, limit: int) -> bytes:
    content = bytearray()
    while chunk := await part.read_chunk():
        content += chunk
        if len(content) > limit:
            raise request_body.too_large(limit)
    return bytes(content)


async def list_files(call: ApiCall[NoContent, FileQuery]) -> FileList:
    """List the uploads of the account."""
    query = call.query
    async with call.context.database.read() as connection:
        rows = await uploads.list_uploads(
            connection,
            call.account,
            after=openai_ids.to_file(query.after) if query.after else None,
            limit=query.limit + 1,
            newest_first=query.order == "desc",
            purpose=query.purpose,
        )
    shown = [_to_object(row) for row in rows[: query.limit]]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return FileList(data=shown, has_more=len(rows) > query.limit, first_id=first, last_id=last)


async def get_file(call: ApiCall[NoContent, NoContent]) -> FileObject:
    """Show an upload."""
    return _to_object(await _require_file(call, call.path["id"]))


async def get_content(call: ApiCall[NoContent, NoContent]) -> web.StreamResponse:
    """Return the bytes of an upload."""
    return await downloads.send_file(call, await _require_file(call, call.path["id"]))


async def delete_file(call: ApiCall[NoContent, NoContent]) -> FileDeleted:
    """Delete an upload."""
    async with call.context.database.begin() as connection:
        deleted = await uploads.delete_upload(connection, call.account, openai_ids.to_file(call.path["id"]))
    if not deleted:
        raise _file_not_found()
    return FileDeleted(id=openai_ids.from_file(openai_ids.to_file(call.path["id"])))


async def uploaded_files(
    call: ApiCall[Any, Any], uploads: Sequence[tuple[str, str]]
) -> list[AttachmentCreate]:
    """Return the attachments that uploaded files are, given with the fields that name them.

    Raises HttpProblem for an unknown one.
    """
    links = call.services.file_services.links
    found = []
    for place, given in uploads:
        row = await call.services.file_services.file_store.get(openai_ids.to_file(given))
        if row is None or row.account != call.account or row.sha256 is None:
            raise invalid_field(place, f"there is no file {given!r} in this account")
        found.append(AttachmentCreate(name=row.name, url=str(links.to_response(row)["url"])))
    return found


async def _require_file(call: ApiCall[Any, Any], given: str) -> FileRow:
    row = await call.services.file_services.file_store.get(openai_ids.to_file(given))
    is_upload = row is not None and row.state is FileState.UPLOADED and row.sha256 is not None
    if row is None or row.account != call.account or not is_upload:
        raise _file_not_found()
    return row


def _file_not_found() -> HttpProblem:
    return not_found("there is no such file in this account")


def _to_object(row: FileRow) -> FileObject:
    return FileObject(
        id=openai_ids.from_file(row.id),
        bytes=row.size,
        created_at=int(row.created_at.timestamp()),
        expires_at=int(row.expires_at.timestamp()) if row.expires_at else None,
        filename=row.name,
        purpose=row.purpose or _PURPOSE,
    )


_UPLOAD = ApiRoute(
    method="POST",
    path="/v1/files",
    access=KeyAccess("chat"),
    handler=upload_file,
    summary="upload a file (multipart/form-data) that messages can name",
    form_model=UploadForm,
    response_model=FileObject,
    raw=True,
    error_responses={413: "it is too large, or the account's storage is full"},
    tag="openai",
)

ROUTES = (
    _UPLOAD,
    ApiRoute(
        method="GET",
        path="/v1/files",
        access=KeyAccess("read"),
        handler=list_files,
        summary="list the uploaded files",
        query_model=FileQuery,
        response_model=FileList,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path="/v1/files/{id}",
        access=KeyAccess("read"),
        handler=get_file,
        summary="show an uploaded file",
        response_model=FileObject,
        tag="openai",
    ),
    ApiRoute(
        method="GET",
        path="/v1/files/{id}/content",
        access=KeyAccess("read"),
        handler=get_content,
        summary="download an uploaded file",
        media_type=media_types.ANY,
        tag="openai",
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/files/{id}",
        access=KeyAccess("chat"),
        handler=delete_file,
        summary="delete an uploaded file",
        response_model=FileDeleted,
        tag="openai",
    ),
)
"""The routes of files."""
