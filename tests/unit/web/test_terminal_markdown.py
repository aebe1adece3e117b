"""Markdown in the terminal: styles and signs, every word, and no escape sequences of others."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.terminal.markdown import MarkdownStream, render_markdown
from gateway.cli.terminal.transcript import Transcript

STYLE = re.compile(r"\x1b\[[0-9;]*m")
LINES = st.sampled_from(
    [
        "",
        "word",
        "**bold** _it_ ~~no~~ `code`",
        "- item",
        "  more",
        "1. one",
        "> quote",
        "# Head",
        "```",
        "    x",
    ]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(LINES, max_size=12).map("\n".join))


def shown(text: str) -> str:
    """Return what is visible of a rendered text."""
    return STYLE.sub("", render_markdown(text))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# Title\nbody", "Title\nbody\n"),
        ("a **b** _c_ `d`", "a b c d\n"),
        ("- a\n- b\n  - c", "• a\n• b\n  • c\n"),
        ("3. a\n4. b", "3. a\n4. b\n"),
        ("- [ ] open\n- [x] done", "☐ open\n☑ done\n"),
        ("> said\n> - a", "│ said\n│ • a\n"),
        ("```py\nx = 1\n```", "    x = 1\n"),
        ("| a | bb |\n|---|----|\n| ccc | d\\|e |", "a    bb\nccc  d|e\n"),
        ("[here](https://a.example) https://b.example", "here (https://a.example) https://b.example\n"),
        ("<b>not</b> a\\*b\\*", "<b>not</b> a*b*\n"),
        ("one\n\ntwo", "one\n\ntwo\n"),
        ("", ""),
    ],
)
def test_markdown_is_shown_by_signs(text: str, lines: str) -> None:
    """Each construct has its form; raw HTML and escapes are text."""
    assert shown(text) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("several words that need more than one line", "several words that\nneed more than one\nline\n"),
        ("- several words that need lines", "• several words that\n  need lines\n"),
        ("> several words that need lines", "│ several words that\n│ need lines\n"),
        ("> 1. several words that need lines", "│ 1. several words\n│    that need lines\n"),
        ("see https://example.com/a-long-address/ now", "see\nhttps://example.com/a-long-address/\nnow\n"),
        ("```\ncode is never wrapped, whatever it is\n```", "    code is never wrapped, whatever it is\n"),
        ("日本語の文章 日本語の文章 語", "日本語の文章\n日本語の文章 語\n"),
        ("| a | b |\n|---|---|\n| 日本 | c |\n| de | f |", "a     b\n日本  c\nde    f\n"),
    ],
)
def test_prose_is_wrapped_between_words(text: str, lines: str) -> None:
    """A terminal would break it in mid-word; code, addresses and tables stay whole for the clipboard."""
    assert STYLE.sub("", render_markdown(text, columns=20)) == lines


def test_a_style_goes_on_in_the_next_line() -> None:
    """The sign of a quote between the lines does not have it."""
    assert render_markdown("> **bold words over two lines**", columns=20).splitlines() == [
        "│ \x1b[1mbold words over\x1b[0m",
        "│ \x1b[1mtwo lines\x1b[22m",
    ]


@given(TEXTS, st.integers(1, 40))
def test_wrapping_changes_spaces_alone(text: str, columns: int) -> None:
    """Every word of the text is there, in its order."""
    signs = re.compile(r"[│\s]+")
    wrapped = STYLE.sub("", render_markdown(text, columns=columns))
    assert signs.sub(" ", wrapped).split() == signs.sub(" ", shown(text)).split()


def test_the_width_is_that_of_the_moment() -> None:
    """A terminal that becomes wider has longer lines from then on."""
    widths = iter([20, 80])
    stream = MarkdownStream(lambda: next(widths))
    long = "several words that need more than one line"
    shown = stream.feed(f"{long}\n\n{long}\n\nend") + stream.flush()
    assert shown.count("\n") == 3 + 1 + 1 + 2


def test_strong_text_is_bold() -> None:
    """Styles begin and end around their text."""
    assert render_markdown("a **b**") == "a \x1b[1mb\x1b[22m\n"


@given(TEXTS)
def test_only_styles_leave_as_escape_sequences(text: str) -> None:
    """Control characters of the text are replaced, so that it cannot move the cursor or set colours.

    Those of the category "C" that stay only join letters or mark the direction of what is beside them.
    """
    kinds = {letter: unicodedata.category(letter) for letter in shown(text)}
    commands = {letter for letter, kind in kinds.items() if kind[0] == "C" or kind in {"Zl", "Zp"}}
    assert commands <= set("\n\t\u200c\u200d\u200e\u200f")


@given(TEXTS, st.lists(st.integers(0, 60)))
def test_pieces_do_not_change_what_is_shown(text: str, cuts: list[int]) -> None:
    """A streamed text is the same however it arrives."""
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(borders)]
    whole, stream = MarkdownStream(), MarkdownStream()
    expected = whole.feed(text) + whole.flush()
    assert "".join(map(stream.feed, pieces)) + stream.flush() == expected


def test_a_block_is_shown_as_soon_as_it_is_complete() -> None:
    """A paragraph appears when the next block begins; code waits for its end."""
    stream = MarkdownStream()
    assert stream.feed("first\n\n") == ""
    assert stream.feed("```\ncode\n\nmore\n") == "first\n"
    assert stream.feed("```\n\nlast") == ""
    assert stream.feed("\n") == "\n    code\n    \n    more\n"
    assert stream.flush() == "\nlast\n"


def test_a_streamed_message_is_shown_once() -> None:
    """The complete message adds only what was not streamed; a tool call is on its own line."""
    transcript = Transcript(markdown=True)
    events: list[tuple[str, dict[str, str]]] = [
        ("message.delta", {"text": "a **b"}),
        ("message.delta", {"text": "** c\n\nd"}),
        ("tool.called", {"name": "bash", "command": "ls"}),
        ("message.completed", {"role": "assistant", "text": "a **b** c\n\nd e"}),
    ]
    text = "".join(transcript.render({"type": kind, "data": about}) for kind, about in events)
    assert STYLE.sub("", text) == "a b c\n\nd\n⚙ bash ls\ne\n"


def test_a_job_has_one_line_for_its_start_and_one_for_its_end() -> None:
    """The result of the call that started it is not shown beside it; its output comes as a message."""
    transcript = Transcript()
    job: dict[str, object] = {"resultId": "job_1", "exit_code": None, "output": ""}
    events: list[tuple[str, dict[str, object]]] = [
        ("tool.called", {"name": "bash", "command": "make"}),
        ("job.started", job),
        ("tool.completed", {"name": "bash", "output": "{}", "resultId": "job_1"}),
        ("job.completed", {**job, "exit_code": 0, "output": "pigeon"}),
    ]
    text = "".join(transcript.render({"type": kind, "data": about}) for kind, about in events)
    assert text == "⚙ bash make\n● job job_1 started\n● job job_1 completed, exit 0\n"


def test_a_call_without_an_exit_code_is_done_or_failed() -> None:
    """A sandbox that cannot be used gives no exit code, and has done nothing."""
    transcript = Transcript()
    shown = [
        transcript.render({"type": "tool.completed", "data": {"name": "bash", "ok": ok, "exit_code": code}})
        for ok, code in ((True, None), (False, None), (False, 3))
    ]
    assert [line.strip() for line in shown] == ["bash done", "bash failed", "bash exit 3"]
