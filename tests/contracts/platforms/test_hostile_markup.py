"""Hostile text costs linear work in the parser, and is split without loss."""

from __future__ import annotations

import pytest

from channels.commonmark.markup import (
    parse,
    split,
)
from channels.commonmark.splitting import MAX_PARSED_LENGTH
from channels.testing.documents import HOSTILE
from channels.testing.line_counter import count_lines
from repetitions import exhaustive
from text_checks import holds_in_order, packed, utf16


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_takes_linear_work(unit: str) -> None:
    """Four times the text takes about four times the steps, to parse and to split."""
    texts = [(unit * 2000)[:size] for size in (500, 2000)]
    for act in (parse, lambda text: split(text, 100), lambda text: split(text, 400, utf16)):
        less, more = (count_lines(lambda act=act, text=text: act(text)) for text in texts)  # type: ignore[misc]
        assert more <= 4.9 * less + 4000, (less, more)


@pytest.mark.parametrize("size", [exhaustive(MAX_PARSED_LENGTH), MAX_PARSED_LENGTH + 1000])
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_is_split_without_loss(unit: str, size: int) -> None:
    """As much as is parsed, and a little more, all arrives: longer texts are cut the same way."""
    text = (unit * size)[:size]
    parts = split(text, 4096, utf16)
    assert all(utf16(part) <= 4096 for part in parts)
    assert holds_in_order(packed(text), packed("\n".join(parts)))
