"""Attachments of a message over HTTP or WebSocket: as base64, or as a link to a stored file."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, StrictStr, model_validator

from delivery.database.clock import utc_now
from gateway.files import media_types
from gateway.files.storage.storage_quota import StorageFull
from gateway.services import Services
from gateway.store.conversations import files as store
from gateway.store.conversations.files import FileRow
from gateway.web.http.problems import HttpProblem, invalid_field, storage_full
from gateway.web.http.route import RequestModel

MAX_ATTACHMENTS = 20
MAX_INLINE_BYTES = 10 * 1024 * 1024
"""Bytes of all inline attachments of one message together."""

MAX_BODY_BYTES = MAX_INLINE_BYTES * 4 // 3 + 1024 * 1024
"""Bytes of a request body with attachments."""


MAX_URL_LENGTH = 2000
"""Characters of a link to a stored file."""


class AttachmentCreate(RequestModel):
    """An attachment of a message: its bytes as base64, or the url of a stored file.

    `size` is accepted for compatibility and ignored.
    """

    name: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    type: Annotated[StrictStr, Field(max_length=100)] = ""
    size: Annotated[int, Field(ge=0, strict=True)] = 0
    content: StrictStr | None = Field(default=None, repr=False)
    url: Annotated[StrictStr, Field(max_length=MAX_URL_LENGTH)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> AttachmentCreate:
        if (self.content is None) == (self.url is None):
            raise ValueError("give either content (base64) or url (a link to a stored file of this gateway)")
        return self


Attachments = Annotated[tuple[AttachmentCreate, ...], Field(max_length=MAX_ATTACHMENTS)]


class InvalidAttachment(Exception):
    """An attachment is invalid, or with `status` 413 does not fit.

    `pointer` names the field; `index` is the attachment, or None for all of them together.
    """

    def __init__(self, field: str, detail: str, *, index: int | None = None, status: int = 422) -> None:
        super().__init__(detail)
        self.pointer = f"/attachments/{index}/{field}" if index is not None else field
        self.detail = detail
        self.index = index
        self.status = status


def invalid_attachment(error: InvalidAttachment, pointer: str, places: Sequence[str] = ()) -> HttpProblem:
    """Return the problem for an attachment; `pointer` is the field of the request that has all of them.

    `places` are the fields that have the first ones, each its own.
    """
    if error.index is not None and error.index < len(places):
        pointer = places[error.index]
    problem = invalid_field(pointer, error.detail)
    return problem if error.status == problem.status else storage_full(error.detail, pointer)


async def save_all(
    services: Services, account: str, attachments: Sequence[AttachmentCreate]
) -> list[dict[str, Any]]:
    """Store a message's attachments and return them as a message contains them; raises InvalidAttachment.

    All attachments are checked before any is decoded or stored.
    """
    weight = sum(len(one.content or "") for one in attachments) * 3 // 4
    if weight > MAX_INLINE_BYTES:
        raise InvalidAttachment(
            "/attachments",
            f"at most {MAX_INLINE_BYTES} bytes can be inline: POST larger files to /files and use their url",
        )
    named = [await _linked_file(services, account, place, one) for place, one in enumerate(attachments)]
    decoded = [await _decode(place, one) for place, one in enumerate(attachments)]
    return [
        services.file_services.links.to_response(row) | {"name": media_types.sanitize_name(one.name)}
        if row is not None
        else await _save_content(services, account, place, one, content or b"")
        for place, (one, row, content) in enumerate(zip(attachments, named, decoded, strict=True))
    ]


async def _save_content(
    services: Services, account: str, index: int, attachment: AttachmentCreate, content: bytes
) -> dict[str, Any]:
    files = services.file_services
    try:
        row = await files.file_store.save(account, attachment.name, content, stated_type=attachment.type)
    except StorageFull as error:
        raise InvalidAttachment("content", str(error), index=index, status=413) from None
    return files.links.to_response(row)


async def _linked_file(
    services: Services, account: str, index: int, attachment: AttachmentCreate
) -> FileRow | None:
    """Return the stored file that an attachment links to; other URLs are never fetched."""
    if attachment.url is None:
        return None
    file = services.file_services.links.parse_url(attachment.url, now=utc_now())
    row = await services.file_services.file_store.get(file) if file is not None else None
    if row is None or row.account != account or row.sha256 is None:
        raise InvalidAttachment(
            "url",
            "this is no valid link to a stored file of yours, and other URLs are not fetched: "
            "send the file as content (base64), or POST it to /files first",
            index=index,
        )
    return row


async def _decode(index: int, attachment: AttachmentCreate) -> bytes | None:
    if attachment.content is None:
        return None
    try:
        return await asyncio.to_thread(base64.b64decode, attachment.content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAttachment("content", "this is not base64", index=index) from None


async def assign(
    services: Services, account: str, saved: Sequence[dict[str, Any]], *, conversation: str, turn: str
) -> None:
    """Assign stored attachments to their conversation, so that they are deleted with it."""
    if saved:
        async with services.transactions.database.begin() as connection:
            await store.attach_uploads(
                connection, account, [one["id"] for one in saved], conversation=conversation, turn=turn
            )
