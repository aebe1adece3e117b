"""Send files by the method of their type, with a caption, or as a document if that is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from channels.commonmark.markup import split
from channels.errors import NotPermitted, Rejected
from channels.inbox.calls import ensure_accepted
from channels.inbox.text import replace_surrogates
from channels.message import Address, File, Reply, SentMessage
from channels.receiving.bounded_dict import BoundedDict
from channels.telegram.api import Api, parse_sent
from channels.telegram.errors import is_about_markup
from channels.telegram.library import InputFile
from channels.telegram.send import markup
from channels.telegram.send.rendering import target
from channels.telegram.text import measure

UPLOAD_LIMIT = 50_000_000
PHOTO_LIMIT = 10_000_000
TEXT_LIMIT = 4096
CAPTION_LIMIT = 1024
MAX_UNFINISHED = 1000

_METHODS = {
    "image/jpeg": ("sendPhoto", "photo"),
    "image/png": ("sendPhoto", "photo"),
    "image/webp": ("sendPhoto", "photo"),
    "image/gif": ("sendAnimation", "animation"),
    "audio/mpeg": ("sendAudio", "audio"),
    "audio/mp4": ("sendAudio", "audio"),
    "audio/x-m4a": ("sendAudio", "audio"),
    "audio/ogg": ("sendVoice", "voice"),
    "video/mp4": ("sendVideo", "video"),
}
"""Media types that Telegram displays itself; any other file is a document."""

_DOCUMENT = ("sendDocument", "document")
_DISPLAYED = "PHOTO IMAGE VIDEO AUDIO VOICE ANIMATION FILE_REFERENCE MEDIA GIF MUSIC"
"""What Telegram's errors call files that are not sent as documents."""

SendReply = Callable[[Address, Reply], Awaitable[SentMessage]]


class Uploads:
    """Sends files with their captions; `send_reply` sends a text.

    A caption that is too long continues in messages below the file. If one of those fails, the next call with
    the same key continues after the last one sent, so that the file is not sent twice while this process
    lives.
    """

    def __init__(self, api: Api, send_reply: SendReply) -> None:
        self._api = api
        self._send_reply = send_reply
        self._unfinished = BoundedDict[str, tuple[SentMessage, list[str]]](MAX_UNFINISHED)

    async def send(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file of at most 50 MB."""
        ensure_accepted(file, UPLOAD_LIMIT)
        if key in self._unfinished:
            return await self._send_rest(address, key)
        caption, *rest = split(file.caption, CAPTION_LIMIT, measure) if file.caption.strip() else [""]
        first = await self._by_type(address, file, caption)
        if rest:
            self._unfinished[key] = (first, list(split("\n\n".join(rest), TEXT_LIMIT, measure)))
            await self._send_rest(address, key)
        return first

    async def _send_rest(self, address: Address, key: str) -> SentMessage:
        """Send the rest of a caption as messages."""
        first, rest = self._unfinished[key]
        while rest:
            await self._send_reply(address, Reply(text=rest[0], key=key))
            del rest[0]
        self._unfinished.pop(key, None)
        return first

    async def _by_type(self, address: Address, file: File, caption: str) -> SentMessage:
        method = _METHODS.get(file.media_type.partition(";")[0].strip().lower(), _DOCUMENT)
        if method[0] == "sendPhoto" and len(file.content) > PHOTO_LIMIT:
            method = _DOCUMENT
        if method is not _DOCUMENT:
            try:
                return await self._send_with_caption(method, address, file, caption)
            except (Rejected, NotPermitted) as error:  # too wide, not decodable, or not allowed as this type
                if not _is_about_type(error):
                    raise
        return await self._send_with_caption(_DOCUMENT, address, file, caption)

    async def _send_with_caption(
        self, method: tuple[str, str], address: Address, file: File, caption: str
    ) -> SentMessage:
        fields = _caption_fields(caption)
        try:
            return await self._upload(method, address, file, fields)
        except Rejected as error:
            if "caption_entities" not in fields or not is_about_markup(error):
                raise
        return await self._upload(method, address, file, {"caption": replace_surrogates(caption)})

    async def _upload(
        self, method: tuple[str, str], address: Address, file: File, caption_fields: dict[str, Any]
    ) -> SentMessage:
        name, field = method
        content = InputFile(file.content, filename=file.name)
        return parse_sent(
            name, await self._api.call(name, {**target(address), **caption_fields, field: content})
        )


def _is_about_type(error: Rejected | NotPermitted) -> bool:
    """Return whether Telegram might accept the file as a document."""
    words = str(error).partition(":")[2].upper()
    return any(kind in words for kind in _DISPLAYED.split()) and "DOCUMENT" not in words


def _caption_fields(caption: str) -> dict[str, Any]:
    """Render a caption; if the result is too long, send the source unchanged."""
    if not caption:
        return {}
    rendered = markup.render(caption)
    if measure(rendered.text) > CAPTION_LIMIT:
        return {"caption": replace_surrogates(caption)}
    entities = [markup.encode_entity(entity) for entity in rendered.entities]
    fields: dict[str, Any] = {"caption": replace_surrogates(rendered.text)}
    return {**fields, "caption_entities": entities} if entities else fields
