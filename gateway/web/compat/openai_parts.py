"""Files in the parts of OpenAI's messages and results of tools: checked, and read as attachments."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.files.media_types import detect_media_type, is_image
from gateway.web.compat.openai_files import uploaded_files
from gateway.web.compat.openai_messages import InlineFile, InputContentPart, InputMessage
from gateway.web.http import attachments
from gateway.web.http.attachments import (
    MAX_ATTACHMENTS,
    MAX_URL_LENGTH,
    AttachmentCreate,
    InvalidAttachment,
    invalid_attachment,
)
from gateway.web.http.problems import invalid_field
from gateway.web.http.route import ApiCall

_DATA_URL = re.compile(
    r"data:([a-z]{1,40}/[a-z0-9.+-]{1,80})?(?:;[a-z0-9-]{1,40}=[^;,]{1,80}){0,5};base64,", re.IGNORECASE
)
URL_MARKS = (":", "?")
"""What URLs have, also links to files without an origin, and base64 has not."""

IMAGE_HEAD = 12_000
"""Characters of base64 that say whether bytes are an image."""

PlacedPart = tuple[str, InputContentPart]
"""A part with its pointer in the request."""

PlacedUpload = tuple[str, str]
"""The pointer of a part in the request, and the id of the uploaded file that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """The inline files and links of parts with their `places`, and uploaded files as (place, id)."""

    files: Sequence[AttachmentCreate] = ()
    places: Sequence[str] = ()
    uploads: Sequence[PlacedUpload] = ()

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self.files) + len(self.uploads)


def placed_parts(
    messages: Sequence[InputMessage], chosen: Sequence[InputMessage], pointer: str
) -> list[PlacedPart]:
    """Return the parts of the chosen ones of a request's messages; `pointer` is the field of all messages."""
    wanted = {id(message) for message in chosen}
    return [
        (f"{pointer}/{place}/{message.field}/{number}", part)
        for place, message in enumerate(messages)
        if id(message) in wanted
        for number, part in enumerate(message.parts)
    ]


def read_files(parts: Sequence[PlacedPart]) -> PartFiles:
    """Return the files of parts; raises HttpProblem for a part that the agent would not get."""
    for place, part in parts:
        if not part.is_readable:
            what = f"a part of the type {part.type!r} is empty or not supported"
            raise invalid_field(place, f"{what}: give text, images, audio or files")
    with_files = [(place, part) for place, part in parts if part.url]
    return PartFiles(
        files=[_to_attachment(number, part, place) for number, (place, part) in enumerate(with_files, 1)],
        places=[place for place, _ in with_files],
        uploads=[(place, part.file.file_id) for place, part in parts if part.file and part.file.file_id],
    )


def check_file_count(found: Sequence[PartFiles], pointer: str) -> None:
    """Raise HttpProblem if a request has too many files."""
    if sum(one.count for one in found) > MAX_ATTACHMENTS:
        raise invalid_field(pointer, f"at most {MAX_ATTACHMENTS} files in one request")


async def save_files(
    call: ApiCall[Any, Any], found: Sequence[PartFiles], pointer: str
) -> list[list[dict[str, Any]]]:
    """Store files and return them as messages contain them, in the groups that they came in.

    Their limits hold for all groups together. Raises HttpProblem.
    """
    uploads = [await uploaded_files(call, one.uploads) for one in found]
    inline = [file for one in found for file in one.files]
    places = [place for one in found for place in one.places]
    files = [*inline, *(file for group in uploads for file in group)]
    try:
        saved = await attachments.save_all(call.services, call.account, files)
    except InvalidAttachment as error:
        raise invalid_attachment(error, pointer, places) from None
    stored, linked = iter(saved[: len(inline)]), iter(saved[len(inline) :])
    return [
        [*(next(stored) for _ in one.files), *(next(linked) for _ in group)]
        for one, group in zip(found, uploads, strict=True)
    ]


def _to_attachment(number: int, part: InputContentPart, pointer: str) -> AttachmentCreate:
    file, url = part.file or InlineFile(), part.url
    if part.picture is None and not any(mark in url for mark in URL_MARKS):
        return AttachmentCreate(name=file.filename or f"file-{number}.bin", content=url)
    found = _DATA_URL.match(url)
    if found is not None:
        kind, content = (found[1] or "").lower(), url[found.end() :]
        if part.picture or kind.startswith("image/"):
            require_image(content, kind, pointer)
        ending = kind.partition("/")[2].partition("+")[0] or "bin"
        noun = "picture" if part.picture else "audio" if part.input_audio else "file"
        name = file.filename or f"{noun}-{number}.{ending}"
        return AttachmentCreate(name=name, type=kind, content=content)
    if len(url) > MAX_URL_LENGTH:
        raise invalid_field(pointer, "a file must be a data: URL or a link to a stored file of this gateway")
    return AttachmentCreate(name=file.filename or f"picture-{number}", url=url)


def require_image(content: str, kind: str, pointer: str) -> None:
    """Refuse a part that says that it is an image, and whose bytes are none; raises HttpProblem."""
    try:
        head = base64.b64decode(content[:IMAGE_HEAD], validate=True)
    except ValueError:
        raise invalid_field(pointer, "this is not base64") from None
    if not is_image(head, kind):
        raise invalid_field(pointer, f"these bytes are no image: they are {detect_media_type(head, '')}")
