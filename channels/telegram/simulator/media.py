"""The file methods of the simulated Bot API."""

from __future__ import annotations

from channels.telegram.simulator.arguments import Arguments
from channels.telegram.simulator.failure import ApiFailure, bad_request
from channels.telegram.simulator.method_base import MethodBase
from channels.telegram.simulator.wording import CAPTION_LIMIT, parse_text, utf16_length
from channels.telegram.simulator.world import Raw

PHOTO_LIMIT = 10_000_000
FILE_LIMIT = 50_000_000
DOWNLOAD_LIMIT = 20_000_000
_MAGIC = {"video": b"ftyp", "voice": b"OggS", "audio": b"", "animation": b""}
"""Bytes that a file of the type has near its start."""


class MediaMethods(MethodBase):
    """Methods that send and fetch files."""

    async def do_sendphoto(self, arguments: Arguments) -> Raw:
        """Send a photo."""
        name, _, content = self._file(arguments, "photo", PHOTO_LIMIT)
        if not content.startswith((b"\xff\xd8", b"\x89PNG", b"RIFF", b"GIF8")):
            raise bad_request("IMAGE_PROCESS_FAILED")
        file = {**self._store_file(name, content), "width": 640, "height": 480}
        return self._send_file(arguments, {"photo": [file]}, content, "photos")

    async def do_senddocument(self, arguments: Arguments) -> Raw:
        """Send a document."""
        return self._send_as(arguments, "document", "documents")

    async def do_sendaudio(self, arguments: Arguments) -> Raw:
        """Send an audio file."""
        return self._send_as(arguments, "audio", "music")

    async def do_sendvideo(self, arguments: Arguments) -> Raw:
        """Send a video."""
        return self._send_as(arguments, "video", "videos")

    async def do_sendvoice(self, arguments: Arguments) -> Raw:
        """Send a voice note."""
        return self._send_as(arguments, "voice", "voice notes")

    async def do_sendanimation(self, arguments: Arguments) -> Raw:
        """Send an animation."""
        return self._send_as(arguments, "animation", "animations")

    def _send_as(self, arguments: Arguments, field: str, kind: str) -> Raw:
        name, media_type, content = self._file(arguments, field, FILE_LIMIT)
        if _MAGIC.get(field, b"") not in content[:32]:
            raise bad_request(f"{field.upper()}_CONTENT_TYPE_INVALID")
        file = {**self._store_file(name, content), "file_name": name, "mime_type": media_type}
        return self._send_file(arguments, {field: file}, content, kind)

    async def do_getfile(self, arguments: Arguments) -> Raw:
        """Prepare a file for download."""
        number = arguments.text("file_id")
        if number not in self._world.files:
            raise bad_request("wrong file_id or the file is temporarily unavailable")
        path, content = self._world.files[number]
        if len(content) > DOWNLOAD_LIMIT:
            raise bad_request("file is too big")
        return {"file_id": number, "file_unique_id": number, "file_size": len(content), "file_path": path}

    def _file(self, arguments: Arguments, name: str, limit: int) -> tuple[str, str, bytes]:
        given = arguments.file(name)
        if given is None:
            raise bad_request(f"there is no {name} in the request")
        if not given[2]:
            raise bad_request("file must be non-empty")
        if len(given[2]) > limit:
            raise ApiFailure(413, "Request Entity Too Large")
        return given

    def _store_file(self, name: str, content: bytes) -> Raw:
        return self._updates.store(name, content)

    def _send_file(self, arguments: Arguments, content: Raw, data: bytes, kind: str) -> Raw:
        room = self._room(arguments, kind)
        caption, entities = parse_text(
            arguments.text("caption"), arguments.text("parse_mode"), arguments["caption_entities"]
        )
        if utf16_length(caption) > CAPTION_LIMIT:
            raise bad_request("message caption is too long")
        words: Raw = {"caption": caption} if caption else {}
        words |= {"caption_entities": entities} if entities else {}
        post = self._post_message(room, arguments, {**content, **words})
        post.file = data
        return post.raw
