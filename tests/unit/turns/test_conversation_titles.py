"""Titles that are made from messages: one visible line of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.titles import TITLE_LENGTH, derive_title


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("hello", "hello"),
        ("  two\n\nlines\t here ", "two lines here"),
        ("", None),
        (" \n\u200b\u202e", None),
        ("a\u202eb\x07c", "abc"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        ("\U0001f469\u200d\U0001f467 home", "\U0001f469\u200d\U0001f467 home"),
        (" \u200d\n\u200c", None),
        ("x" * 200, "x" * (TITLE_LENGTH - 1) + "…"),
    ],
)
def test_a_title_is_the_start_of_the_message(text: str, title: str | None) -> None:
    """White space becomes single spaces, invisible characters are left out, long texts are cut."""
    assert derive_title(text) == title


@given(st.text(max_size=400))
def test_a_title_is_one_line_that_people_can_see(text: str) -> None:
    """No text makes a title that is empty, too long or has characters without a shape."""
    title = derive_title(text)
    if title is not None:
        shown = title.replace("\u200c", "").replace("\u200d", "")  # they join letters and emoji
        assert 0 < len(shown) <= len(title) <= TITLE_LENGTH
        assert shown.strip()
        assert shown.isprintable()
