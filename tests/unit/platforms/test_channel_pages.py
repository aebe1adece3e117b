"""The pages of the platforms name every setting, and the page of what is not tried every platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.registry import built_in

PAGES = Path(__file__).parents[3] / "docs" / "guide" / "channels"


@pytest.mark.parametrize("kind", sorted(built_in()))
def test_a_page_names_every_setting(kind: str) -> None:
    """Those that all channels share too: a reader looks for them there."""
    text = (PAGES / f"{kind}.md").read_text()
    assert [name for name in built_in()[kind].settings.model_fields if f"`{name}" not in text] == []
    assert f"dovecote channels test {kind}" in text
    assert f"dovecote doctor --simulate {kind}" in text


def test_each_platform_says_what_was_not_tried() -> None:
    """One page has all of them."""
    text = (PAGES / "real-platforms.md").read_text()
    assert [one.title for one in built_in().values() if f"## {one.title}\n" not in text] == []
