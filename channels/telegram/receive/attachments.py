"""Read the files of a message as attachments; pure."""

from __future__ import annotations

from channels.inbox.text import bare_file_name, clean
from channels.message import Attachment
from channels.telegram.payloads import Content, File

_DEFAULT_TYPES = {
    "document": ("", "application/octet-stream"),
    "audio": (".mp3", "audio/mpeg"),
    "voice": (".ogg", "audio/ogg"),
    "video": (".mp4", "video/mp4"),
    "video_note": (".mp4", "video/mp4"),
    "animation": (".mp4", "video/mp4"),
}


def attachments(message: Content) -> tuple[Attachment, ...]:
    """Return the files of a message; of a photo's sizes only the largest."""
    found: list[Attachment] = []
    if message.photo:
        largest = max(message.photo, key=lambda size: (size.width * size.height, size.file_size or 0))
        found.append(_attachment(largest, f"photo-{message.message_id}.jpg", "image/jpeg"))
    for kind, (extension, media_type) in _DEFAULT_TYPES.items():
        file: File | None = getattr(message, kind)
        if file and not (kind == "document" and message.animation):
            found.append(_attachment(file, f"{kind}-{message.message_id}{extension}", media_type))
    if message.sticker:
        extension, media_type = _sticker_type(message.sticker)
        found.append(_attachment(message.sticker, f"sticker-{message.message_id}{extension}", media_type))
    return tuple(found)


def _sticker_type(sticker: File) -> tuple[str, str]:
    if sticker.is_animated:
        return ".tgs", "application/x-tgsticker"
    return (".webm", "video/webm") if sticker.is_video else (".webp", "image/webp")


def _attachment(file: File, name: str, media_type: str) -> Attachment:
    return Attachment(
        name=bare_file_name(file.file_name, otherwise=name),
        media_type=clean(file.mime_type or media_type),
        size=max(0, file.file_size or 0),
        ref=clean(file.file_id),
    )
