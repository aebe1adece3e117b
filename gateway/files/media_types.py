"""Media types by content, safe file names, and sizes for people (pure)."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

BINARY = "application/octet-stream"
ANY = "*/*"
"""The range of all types, for descriptions of answers that have the type of a stored file."""
SVG = "image/svg+xml"
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Image types that models accept."""

ACTIVE_CONTENT = frozenset({"text/html", "text/xml", SVG, "application/xhtml+xml"})
"""Types that a browser might execute; they are served as binary."""

MAX_NAME_BYTES = 120
_SNIFF_BYTES = 8192
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"PK\x05\x06", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"BZh", "application/x-bzip2"),
    (0, b"\xfd7zXZ\x00", "application/x-xz"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"#!AMR", "audio/amr"),
    (4, b"ftypM4A ", "audio/mp4"),
    (4, b"ftypM4B ", "audio/mp4"),
    (4, b"ftyphei", "image/heic"),
    (4, b"ftypmif1", "image/heif"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypqt  ", "video/quicktime"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
    (0, b"SQLite format 3\x00", "application/vnd.sqlite3"),
)
"""(offset, bytes, media type), the longest first; RIFF files are distinguished by the word at offset 8."""

_BITMAP = re.compile(rb"BM.{4}\0{4}.{4}[\x0c-\x7c]\0{3}", re.DOTALL)
"""The head of a BMP file: two reserved words, and the size of the header that follows."""

_DETECTED_IMAGES = frozenset({kind for _, _, kind in _MAGIC if kind.startswith("image/")} | {"image/bmp"})
_RIFF = frozenset({b"WEBP", b"WAVE"})
_ADTS_SECOND = frozenset({0xF0, 0xF1, 0xF8, 0xF9})
_MP3_SECOND = frozenset({0xE2, 0xE3, 0xF2, 0xF3, 0xFA, 0xFB})
"""The second bytes of frames of AAC (ADTS: layer 0) and MP3 (layer III), after 0xFF."""

_OFFICE = "application/vnd.openxmlformats-officedocument"
_ZIPPED = {
    ".docx": f"{_OFFICE}.wordprocessingml.document",
    ".xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    ".pptx": f"{_OFFICE}.presentationml.presentation",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".ods": "application/vnd.oasis.opendocument.spreadsheet",
}
"""Types of ZIP archives by file name, because the content alone is ambiguous."""

_TEXTS = {".csv": "text/csv", ".json": "application/json", ".md": "text/markdown", ".svg": SVG}
_MARKUP = re.compile(rb"^\s*(?:<!doctype\s+html|<html|<\?xml|<svg|<script)", re.IGNORECASE)
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_DEVICES = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
_FORBIDDEN = re.compile(r"""[\\/:*?"<>|`\[\]]""")


def detect_media_type(content: bytes, name: str) -> str:
    """Return a file's media type by its content; the name only resolves ambiguous content."""
    suffix = PurePosixPath(name).suffix.lower()
    for where, magic, kind in _MAGIC:
        if content[where : where + len(magic)] == magic and (magic not in _RIFF or content[:4] == b"RIFF"):
            return _ZIPPED.get(suffix, kind) if kind == "application/zip" else kind
    if _BITMAP.match(content):
        return "image/bmp"
    if (audio := _detect_frames(content)) is not None:
        return audio
    if not _is_text(content[:_SNIFF_BYTES]):
        return BINARY
    if found := _MARKUP.match(content[:_SNIFF_BYTES]):
        return "text/html" if b"html" in found[0].lower() or b"script" in found[0].lower() else "text/xml"
    kind = _TEXTS.get(suffix, "text/plain")
    return "text/plain" if kind == SVG else kind


def is_text(media_type: str) -> bool:
    """Return whether a detected type is one of texts, which are UTF-8."""
    return media_type.startswith("text/") or media_type == _TEXTS[".json"]


def is_image(content: bytes, stated_type: str) -> bool:
    """Return whether content can be the image that its sender claims.

    Of a type that is not detected, any unknown bytes can.
    """
    found = detect_media_type(content, "")
    if found == BINARY:
        return stated_type.startswith("image/") and stated_type not in _DETECTED_IMAGES
    return found.startswith("image/") or (stated_type == SVG and found == "text/xml")


def _detect_frames(content: bytes) -> str | None:
    """Return the type of audio that begins with a frame and has no header: AAC or MP3."""
    if len(content) < 7 or content[0] != 0xFF:  # noqa: PLR2004 - the header of a frame of AAC
        return None
    if content[1] in _ADTS_SECOND:
        length = (content[3] & 3) << 11 | content[4] << 3 | content[5] >> 5
        following = content[length : length + 2]
        return "audio/aac" if length >= 7 and following in {b"", content[:2]} else None  # noqa: PLR2004
    is_rate_valid = content[2] >> 4 not in {0, 15} and content[2] >> 2 & 3 != 3  # noqa: PLR2004
    return "audio/mpeg" if content[1] in _MP3_SECOND and is_rate_valid else None


def _is_text(head: bytes) -> bool:
    if _NOT_TEXT.search(head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) == _SNIFF_BYTES and error.start >= len(head) - 3  # a character cut in half
    return True


def sanitize_name(name: str) -> str:
    """Return a file name without directories that every platform and file system accepts."""
    bare = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode()).replace("\\", "/")
    bare = bare.rsplit("/", 1)[-1]
    safe = "".join(" " if letter.isspace() else letter for letter in bare if _is_visible(letter))
    safe = _FORBIDDEN.sub("_", safe).strip(" .")
    if not safe or _DEVICES.match(safe):
        safe = f"file_{safe}".rstrip("_")
    return _shorten(safe)


def _is_visible(letter: str) -> bool:
    """Return whether a character is visible; bidirectional controls that could hide a suffix are not."""
    return letter.isspace() or unicodedata.category(letter) not in {"Cc", "Cf", "Cs", "Co", "Cn"}


def _shorten(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    if not dot or len(suffix) > 16:  # noqa: PLR2004 - no suffix is longer
        stem, dot, suffix = name, "", ""
    while len((stem + dot + suffix).encode()) > MAX_NAME_BYTES:
        stem = stem[:-1]
    return stem.rstrip() + dot + suffix


def numbered_name(name: str, number: int) -> str:
    """Return the name of the n-th file of the same name: `report.pdf`, `report (2).pdf`."""
    if number <= 1:
        return name
    path = PurePosixPath(name)
    return f"{path.stem} ({number}){path.suffix}"


def render_size(size: int) -> str:
    """Return a size for people: 640 bytes, 12 kB, 3.4 MB."""
    if size < 1000:  # noqa: PLR2004 - a kilobyte
        return f"{size} bytes"
    if size < 1_000_000:  # noqa: PLR2004 - a megabyte
        return f"{round(size / 1000)} kB"
    return f"{size / 1_000_000:.1f} MB"
