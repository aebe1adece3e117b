"""Replies that are too long for messages: one message and a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.message import Button
from channels.port import ChannelLimits
from delivery.chat.file_sink import render_end, shorten
from delivery.deliveries.part import Part, decode_part, encode_part
from delivery.deliveries.rendering import split_part

LIMITS = ChannelLimits(text=100)
UTF16 = ChannelLimits(text=100, measure=lambda text: len(text.encode("utf-16-le")) // 2)
LONG = Part(text="word " * 200, message="msg_1")


def test_a_text_of_three_messages_is_one_message_and_a_file() -> None:
    """The message says that the whole follows, and the file names the message that has it."""
    head, rest = split_part(LONG, LIMITS, max_messages=2)
    assert head.text.startswith("word word")
    assert head.text.endswith("as a file.")
    assert len(head.text) <= LIMITS.text
    assert rest.file is not None
    assert (rest.file.id, rest.file.is_text, rest.text) == ("msg_1", True, "")
    assert decode_part(encode_part(rest)) == rest


@pytest.mark.parametrize(
    ("part", "most"),
    [
        (replace(LONG, text="word " * 30), 2),
        (LONG, 0),
        (replace(LONG, message=None), 2),
        (replace(LONG, buttons=(Button(label="Approve", data="approve:1"),)), 2),
    ],
    ids=["two messages", "no limit", "no message", "an approval"],
)
def test_other_texts_are_sent_as_messages(part: Part, most: int) -> None:
    """What fits two messages, and what people must read before they decide, is never a file."""
    parts = split_part(part, LIMITS, max_messages=most)
    assert all(one.file is None for one in parts)
    assert "".join("".join(one.text.split()) for one in parts) == "".join(part.text.split())


@pytest.mark.parametrize(("text", "most", "messages"), [("word " * 10, 2, 1), ("word " * 30, 0, 2)])
def test_the_whole_of_a_text_that_was_cut_follows_it(text: str, most: int, messages: int) -> None:
    """However few messages its beginning is, and where the platform takes no files."""
    *shown, whole = split_part(replace(LONG, text=text), LIMITS, max_messages=most, is_cut=True)
    assert [one.file for one in shown] == [None] * messages
    assert shown[-1].text.endswith(" …")
    assert whole.file is not None
    assert (whole.file.id, whole.file.is_text) == ("msg_1", True)


@given(text=st.text(max_size=400), limit=st.integers(100, 300))
def test_a_text_within_a_platform_s_limit_keeps_both_ends(text: str, limit: int) -> None:
    """A longer one is shortened in the middle, to valid UTF-8 within the limit."""
    content = text.encode()
    found = shorten(content, limit)
    assert shorten(content, 0) == content
    assert len(found) <= max(limit, min(len(content), limit))
    found.decode()
    if len(content) <= limit:
        assert found == content
    else:
        assert b"left out" in found
        assert content.startswith(found[:10].decode(errors="ignore").encode())


@given(text=st.text(min_size=1, max_size=400), limits=st.sampled_from([LIMITS, UTF16]))
def test_the_end_of_a_text_fits_a_message(text: str, limits: ChannelLimits) -> None:
    """Where no file can be sent, the reason and the end are one message."""
    shown = render_end(text.encode(errors="ignore"), "no files here", limits)
    assert limits.measure(shown) <= limits.text
    assert "no files here" in shown
