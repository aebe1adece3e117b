"""What every installed channel promises about words: split at blocks, rendered whole, in linear time."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.markup import parse, split
from channels.port import ChannelPlugin
from channels.registry import GROUP
from line_counter import count_lines
from markup_documents import HOSTILE, documents

MODULES = {entry.name: entry.module for entry in entry_points(group=GROUP)}
_WORD = re.compile(r"(?:alpha|beta|gamma|delta|code)\d+")


def renderer(plugin: ChannelPlugin) -> Callable[[str], str]:
    """Return how a channel renders CommonMark, as text."""
    render: Callable[[str], Any] = import_module(f"{MODULES[plugin.name]}.send.markup").render
    return lambda text: str(getattr(rendered := render(text), "text", rendered))


def test_a_renderer_loses_no_word(plugin: ChannelPlugin) -> None:
    """Whatever the structure, each word is shown, in its order."""
    render = renderer(plugin)

    @settings(max_examples=40, deadline=None)
    @given(documents())
    def check(document: str) -> None:
        assert _WORD.findall(render(document)) == _WORD.findall(document)

    check()


def test_a_long_reply_is_split_between_blocks_and_loses_nothing(plugin: ChannelPlugin) -> None:
    """Parts fit by the platform's own measure, hold every word, and cut no block that would fit."""

    @settings(max_examples=40, deadline=None)
    @given(documents(), st.integers(100, 400))
    def check(document: str, limit: int) -> None:
        parts = split(document, limit, plugin.limits.measure)
        assert all(plugin.limits.measure(part) <= limit for part in parts)
        assert _WORD.findall("\n\n".join(parts)) == _WORD.findall(document)
        whole = [block for block in document.split("\n\n") if len(parse(block)) == 1 and len(block) <= 60]
        assert all(any(_contains_block(part, block) for part in parts) for block in whole if _is_plain(block))

    check()


def _is_plain(block: str) -> bool:
    """Whether a block is unchanged in its part: a paragraph or heading of one line."""
    return "\n" not in block and not block.startswith(("```", "|", ">", "-")) and not block[0].isdecimal()


def _contains_block(part: str, block: str) -> bool:
    return block.strip() in part


@pytest.mark.parametrize("unit", HOSTILE)
def test_no_renderer_is_superlinear(plugin: ChannelPlugin, unit: str) -> None:
    """Twice the hostile text takes about twice the steps, so a model's text never blocks the loop."""
    render = renderer(plugin)
    texts = [(unit * 1200)[:size] for size in (300, 600, 1200)]
    steps = [count_lines(lambda text=text: render(text)) for text in texts]  # type: ignore[misc]
    assert all(more <= 2.6 * less + 2000 for less, more in pairwise(steps)), steps


def test_text_like_html_is_not_lost(plugin: ChannelPlugin) -> None:
    """Text that looks like a tag stays text of the reply."""
    shown = renderer(plugin)("if a<b and c>d use Vec<T>")
    for escaped, character in (("&lt;", "<"), ("&gt;", ">"), ("\\", "")):
        shown = shown.replace(escaped, character)
    assert shown == "if a<b and c>d use Vec<T>"
