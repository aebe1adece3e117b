"""Frames of a WebSocket with text that cannot be stored."""

from __future__ import annotations

import pytest

from gateway.web.stream.frames import ProtocolError, parse


@pytest.mark.parametrize("letter", [r"\u0000", r"\ud800"])
def test_a_frame_with_text_that_cannot_be_stored_is_answered(letter: str) -> None:
    """The error names the field and the message, and the connection stays open."""
    frame = f'{{"type": "send", "conversation": "notes", "id": "one", "text": "a{letter}b"}}'
    with pytest.raises(ProtocolError, match=r"^text: ") as refused:
        parse(frame)
    assert refused.value.code == "invalid"
    assert refused.value.fields == {"conversation": "notes", "id": "one"}


def test_names_that_cannot_be_stored_are_not_repeated_as_they_are() -> None:
    """An id with such a letter is the field that the error names."""
    with pytest.raises(ProtocolError, match=r"^id: "):
        parse('{"type": "send", "id": "\\u0000", "text": "x"}')
