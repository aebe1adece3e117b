"""Files that come with a message over HTTP or a socket: as base64, or by a link of ours."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, StrictStr, model_validator

from delivery.database.clock import utc_now
from gateway.files import media_types
from gateway.services import Core
from gateway.store.conversations import files as store
from gateway.store.conversations.files import FileRow
from gateway.web.http.route import Strict

MOST = 20
INLINE_BYTES = 10 * 1024 * 1024
"""Bytes that all inline attachments of one message may have together."""

BODY_BYTES = INLINE_BYTES * 4 // 3 + 1024 * 1024
"""What a request with attachments may weigh."""


LONGEST_URL = 2000
"""Characters of a link to a file of ours."""


class Attached(Strict):
    """A file that goes with a message: its bytes as base64, or the url of a file that is kept here already.

    `size` is taken for compatibility and not believed.
    """

    name: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    type: Annotated[StrictStr, Field(max_length=100)] = ""
    size: Annotated[int, Field(ge=0, strict=True)] = 0
    content: StrictStr | None = Field(default=None, repr=False)
    url: Annotated[StrictStr, Field(max_length=LONGEST_URL)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Attached:
        if (self.content is None) == (self.url is None):
            raise ValueError("give either content (base64) or url (a link of this gateway)")
        return self


Attachments = Annotated[tuple[Attached, ...], Field(max_length=MOST)]


class BadAttachment(Exception):
    """An attachment cannot be taken; `pointer` says which part of it."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.pointer = pointer
        self.detail = detail


async def keep_all(core: Core, account: str, attached: Sequence[Attached]) -> list[dict[str, Any]]:
    """Keep what came with a message and return it as messages have it; raises BadAttachment.

    Everything is judged before anything is decoded or kept.
    """
    weight = sum(len(one.content or "") for one in attached) * 3 // 4
    if weight > INLINE_BYTES:
        raise BadAttachment(
            "/attachments",
            f"at most {INLINE_BYTES} bytes in all go inline: POST larger files to /files, and name their url",
        )
    named = [await _named(core, account, place, one) for place, one in enumerate(attached)]
    decoded = [await _decoded(place, one) for place, one in enumerate(attached)]
    return [
        core.filing.links.shape(row) | {"name": media_types.clean_name(one.name)}
        if row is not None
        else core.filing.links.shape(
            await core.filing.shelf.keep(account, one.name, content or b"", kind=one.type)
        )
        for one, row, content in zip(attached, named, decoded, strict=True)
    ]


async def _named(core: Core, account: str, place: int, one: Attached) -> FileRow | None:
    """Return the file an attachment names by a link of ours; nothing else is ever fetched."""
    if one.url is None:
        return None
    file = core.filing.links.file_of(one.url, now=utc_now())
    row = await core.filing.shelf.find(file) if file is not None else None
    if row is None or row.account != account or row.sha256 is None:
        raise BadAttachment(
            f"/attachments/{place}/url",
            "this is no valid link of yours to a file kept here, and other addresses are not fetched: "
            "send the file as content (base64), or POST it to /files first",
        )
    return row


async def _decoded(place: int, one: Attached) -> bytes | None:
    if one.content is None:
        return None
    try:
        return await asyncio.to_thread(base64.b64decode, one.content, validate=True)
    except (binascii.Error, ValueError):
        raise BadAttachment(f"/attachments/{place}/content", "this is not base64") from None


async def adopt(
    core: Core, account: str, kept: Sequence[dict[str, Any]], *, conversation: str, turn: str
) -> None:
    """Let what was kept belong to the conversation it was said in, and end with it."""
    if kept:
        async with core.ledger.database.begin() as connection:
            await store.adopt(
                connection, account, [one["id"] for one in kept], conversation=conversation, turn=turn
            )
