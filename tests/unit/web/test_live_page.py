"""The script that gives pages of live views a storage."""

from __future__ import annotations

import pytest

from gateway.web.stream.live_page import HEAD_BYTES, STORAGE_SCRIPT, with_storage


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"<!doctype html>\n<html><head>", b"<script src=app.js></script></head>"),
        (b'<HEAD lang="en">', b""),
        (b"<header>no head</header><head\n>", b"<title>x</title>"),
    ],
)
def test_the_script_is_first_in_the_head(before: bytes, after: bytes) -> None:
    """The script runs before those of the page, and nothing else of the page changes."""
    assert with_storage(before + after) == before + STORAGE_SCRIPT + after


@pytest.mark.parametrize(
    "page", [b"", b"<p>a page without a head", b" " * HEAD_BYTES + b"<head>", "<head>".encode("utf-16")]
)
def test_a_page_without_a_head_stays_as_it_is(page: bytes) -> None:
    """A page whose beginning has no head that can be read passes unchanged."""
    assert with_storage(page) == page
