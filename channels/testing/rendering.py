"""What a channel promises about text: split at blocks, rendered whole, in linear time."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.commonmark.markup import parse, split
from channels.port import ChannelPlugin
from channels.testing.documents import HOSTILE, documents
from channels.testing.line_counter import count_lines

_WORD = re.compile(r"(?:alpha|beta|gamma|delta|code)\d+")


def _is_plain(block: str) -> bool:
    """Return whether a part contains the block unchanged: a paragraph or heading of one line."""
    return "\n" not in block and not block.startswith(("```", "|", ">", "-")) and not block[0].isdecimal()


def _contains_block(part: str, block: str) -> bool:
    return block.strip() in part


class RenderingContract:
    """What a channel that renders markup promises; the fixture `render` returns CommonMark as its text."""

    def test_a_renderer_loses_no_word(self, render: Callable[[str], str]) -> None:
        """Every word of a document is rendered, in order."""

        @settings(max_examples=40, deadline=None)
        @given(documents())
        def check(document: str) -> None:
            assert _WORD.findall(render(document)) == _WORD.findall(document)

        check()

    def test_a_long_reply_is_split_between_blocks_and_loses_nothing(self, plugin: ChannelPlugin) -> None:
        """Parts fit the limit, contain every word, and cut no block that would fit."""

        @settings(max_examples=40, deadline=None)
        @given(documents(), st.integers(100, 400))
        def check(document: str, limit: int) -> None:
            parts = split(document, limit, plugin.limits.measure)
            assert all(plugin.limits.measure(part) <= limit for part in parts)
            assert _WORD.findall("\n\n".join(parts)) == _WORD.findall(document)
            whole = [block for block in document.split("\n\n") if len(parse(block)) == 1 and len(block) <= 60]
            assert all(
                any(_contains_block(part, block) for part in parts) for block in whole if _is_plain(block)
            )

        check()

    @pytest.mark.parametrize("unit", HOSTILE)
    def test_no_renderer_is_superlinear(self, render: Callable[[str], str], unit: str) -> None:
        """Rendering four times the hostile text takes about four times the steps."""
        texts = [(unit * 1200)[:size] for size in (300, 1200)]
        less, more = (count_lines(lambda text=text: render(text)) for text in texts)  # type: ignore[misc]
        assert more <= 4.9 * less + 4000, (less, more)

    def test_text_like_html_is_not_lost(self, render: Callable[[str], str]) -> None:
        """Text that looks like a tag is rendered as text."""
        shown = render("if a<b and c>d use Vec<T>")
        for escaped, character in (("&lt;", "<"), ("&gt;", ">"), ("\\", "")):
            shown = shown.replace(escaped, character)
        assert shown == "if a<b and c>d use Vec<T>"
