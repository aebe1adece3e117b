"""Prompts of editors as the messages and files of the gateway, and lines of standard input."""

from __future__ import annotations

import pytest

from gateway.cli.acp.peer import RpcError
from gateway.cli.acp.prompts import MAX_FILES, PromptFile, read_prompt
from gateway.cli.terminal.stdin_lines import StdinLines

IMAGE = {"type": "image", "data": "AAEC", "mimeType": "image/jpeg"}
BYTES = b"\0\1\2"


def test_a_prompt_has_the_text_of_its_blocks_and_their_files() -> None:
    """Links and embedded texts are text; images, sound and binary files are files."""
    prompt = read_prompt(
        [
            {"type": "text", "text": "see"},
            {"type": "resource_link", "uri": "file:///a.py", "name": "a.py"},
            {"type": "resource", "resource": {"uri": "file:///b.py", "text": "print()"}},
            IMAGE,
            {"type": "audio", "data": "AAEC", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///tmp/c%20d.bin", "blob": "AAEC"}},
        ]
    )
    assert prompt.text == "see\n[a.py](file:///a.py)\nfile:///b.py:\n```\nprint()\n```"
    assert [file.name for file in prompt.files] == ["image-4.jpg", "audio-5.wav", "c d.bin"]
    assert {file.content for file in prompt.files} == {BYTES}


def test_a_prompt_without_text_names_its_files() -> None:
    """A message of the gateway needs a text."""
    prompt = read_prompt([{**IMAGE, "uri": "https://example.org/x/photo.png?size=1"}, IMAGE])
    assert prompt.text == "photo.png, image-2.jpg"
    assert prompt.files[0] == PromptFile(name="photo.png", content=BYTES)
    assert read_prompt([{**IMAGE, "uri": "http://["}]).text == "image-1.jpg"


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        ([], "the prompt is empty"),
        ([{"type": "text", "text": " "}], "the prompt is empty"),
        ([{"type": "text"}], "a prompt consists of"),
        (["text"], "a prompt consists of"),
        ([{"type": "video", "data": "AAEC"}], "a prompt consists of"),
        ([{"type": "image", "mimeType": "image/png"}], "data of image 1 is missing"),
        ([{**IMAGE, "data": "AAE"}], "image-1.jpg is not base64"),
        ([{**IMAGE, "data": "é"}], "image-1.jpg is not base64"),
        ([IMAGE] * (MAX_FILES + 1), "at most 20 files; this has 21"),
    ],
)
def test_a_wrong_prompt_is_refused_with_the_reason(blocks: list[object], error: str) -> None:
    """The editor shows the reason."""
    with pytest.raises(RpcError, match=error):
        read_prompt(blocks)


def test_lines_arrive_whole_whatever_the_pieces_are() -> None:
    """A prompt with an image is a line of megabytes, in pieces of 64 KiB."""
    lines: list[str | None] = []
    reader = StdinLines(lines.append)
    for piece in (b"a", b"b\nc\n", b"\n", b"d\r\ne", b"f\n", b"rest", b""):
        reader.feed(piece)
    assert lines == ["ab", "c", "", "d", "ef", "rest", None]
