"""Types of files by their content, and names that every platform accepts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.files import media_types

AAC_FRAME = b"\xff\xf1\x50\x80\x01\x3f\xfc\xde\x02"
"""A frame of 9 bytes, as `voice.aac` of a phone begins."""
BITMAP = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0"


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n....", "x.txt", "image/png"),
        (b"\xff\xd8\xff\xe0", "x", "image/jpeg"),
        (b"GIF89a", "x", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "x", "image/webp"),
        (b"WEBPxxxxWEBP", "x.bin", "text/plain"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "x", "audio/wav"),
        (b"WAVExxxxWAVE", "x.bin", "text/plain"),
        (AAC_FRAME * 2, "voice", "audio/aac"),
        (AAC_FRAME, "voice.mp3", "audio/aac"),
        (AAC_FRAME + b"no frame", "voice.aac", "application/octet-stream"),
        (b"\xff\xfb\x90\x64" + bytes(413), "x", "audio/mpeg"),
        (b"\xff\xfb\xff\xff" + bytes(413), "x", "application/octet-stream"),
        (b"ID3\x04", "x", "audio/mpeg"),
        (b"#!AMR\n", "x", "audio/amr"),
        (b"\0\0\0\x1cftypM4A \0\0", "memo.m4a", "audio/mp4"),
        (b"\0\0\0\x1cftypisom\0\0", "x.mp4", "video/mp4"),
        (b"\0\0\0\x1cftypheic\0\0", "photo.mp4", "image/heic"),
        (b"\0\0\0\x1cftypavif\0\0", "photo.mp4", "image/avif"),
        (b"II*\0\x08\0\0\0", "scan", "image/tiff"),
        (BITMAP, "x", "image/bmp"),
        (b"BMW and Benz", "x.bmp", "text/plain"),
        (b"%PDF-1.7", "x.png", "application/pdf"),
        (b"PK\x03\x04....", "x.zip", "application/zip"),
        (b"PK\x03\x04....", "x.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        (b"MZ\x90\0\x03", "holiday.png", "application/octet-stream"),
        (b"a,b\n1,2\n", "x.csv", "text/csv"),
        (b"hello", "x.html", "text/plain"),
        (b"  <!DOCTYPE html><script>", "x.txt", "text/html"),
        (b"<svg onload=alert(1)>", "x.svg", "text/xml"),
        (b"", "x.png", "text/plain"),
        ("ü".encode() * 5000, "x.txt", "text/plain"),
        (b"\xff\xfe\0h", "x.txt", "application/octet-stream"),
    ],
)
def test_a_file_is_what_its_content_says(content: bytes, name: str, expected: str) -> None:
    """A name alone makes no program a picture, and no text a page."""
    assert media_types.detect_media_type(content, name) == expected


@pytest.mark.parametrize(
    ("content", "stated", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/jpeg", True),
        (BITMAP, "", True),
        (b"<svg></svg>", "image/svg+xml", True),
        (b"\xff\x0a\0", "image/jxl", True),
        (b"\xff\x0a\0", "image/png", False),
        (b"<svg></svg>", "image/png", False),
        (b"no image", "image/jxl", False),
        (b"%PDF-1.7", "image/png", False),
        (b"", "image/png", False),
    ],
)
def test_bytes_can_be_the_image_that_they_are_said_to_be(content: bytes, stated: str, expected: bool) -> None:
    """Unknown bytes can be an image of a type that is not detected; text and documents are none."""
    assert media_types.is_image(content, stated) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\evil.exe", "evil.exe"),
        ("a\nb\0c\u202egnp.exe", "a bcgnp.exe"),
        ("", "file"),
        ("...", "file"),
        ("con.txt", "file_con.txt"),
        ("`rm`|<x>?.txt", "_rm___x__.txt"),
        ("x" * 300 + ".tar.gz", "x" * 117 + ".gz"),
    ],
)
def test_a_name_is_made_harmless(given: str, expected: str) -> None:
    """No path, no control character, no name of a device, no name that is too long."""
    assert media_types.sanitize_name(given) == expected


@given(st.text())
def test_any_name_becomes_one_that_can_be_used(name: str) -> None:
    """Whatever it was, it is a bare file name of bounded length, and cleaning it again changes nothing."""
    clean = media_types.sanitize_name(name)
    assert clean
    assert len(clean.encode()) <= media_types.MAX_NAME_BYTES
    assert not set(clean) & set("/\\\0\n`[]")
    assert clean not in {".", ".."}
    assert media_types.sanitize_name(clean) == clean


def test_a_further_file_of_a_name_keeps_its_suffix() -> None:
    """The number comes before the suffix."""
    assert media_types.numbered_name("report.pdf", 2) == "report (2).pdf"
    assert media_types.numbered_name("README", 3) == "README (3)"


def test_sizes_are_said_as_people_say_them() -> None:
    """Bytes, kilobytes, megabytes."""
    assert [media_types.render_size(size) for size in (640, 12_345, 3_400_000)] == [
        "640 bytes",
        "12 kB",
        "3.4 MB",
    ]
