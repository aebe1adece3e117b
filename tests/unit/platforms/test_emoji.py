"""The emoji of reactions, as people and models write them, by the names of platforms."""

from __future__ import annotations

import pytest

from channels.emoji import is_emoji
from channels.registry import built_in


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [
        ("telegram", "❤️", "❤"),
        ("telegram", "❤", "❤"),
        ("telegram", ":fire:", "🔥"),
        ("telegram", "🧮", None),
        ("slack", "👍", "+1"),
        ("slack", "thumbsup", "+1"),
        ("slack", ":party_parrot:", "party_parrot"),
        ("slack", "🧮", None),
        ("slack", "<!channel>", None),
        ("discord", "🧮", "🧮"),
        ("discord", "tada", "🎉"),
        ("discord", "<:party:123456789012345678>", "party:123456789012345678"),
        ("discord", "hello", None),
        ("github", "❤", "heart"),
        ("github", "🎉", "hooray"),
        ("github", "🔥", None),
        *(
            (kind, given, None)
            for kind in ("telegram", "slack", "discord")
            for given in ("", " ", "👍" * 101)
        ),
    ],
)
def test_a_platform_names_an_emoji(kind: str, given: str, name: str | None) -> None:
    """Emoji, short names and the platform's own names are accepted; others have no name."""
    assert built_in()[kind].emoji.name_of(given) == name


@pytest.mark.parametrize("text", ["👍", "👍🏽", "❤️", "👨\u200d💻", "1️⃣", "🇩🇪", "☃"])
def test_an_emoji_is_one(text: str) -> None:
    """Skin tones, joined emoji, keycaps and flags as well."""
    assert is_emoji(text)


@pytest.mark.parametrize("text", ["", "a", "1", "👍a", "\u200d", "\ufe0f", "日本", "👍 👍", "\n", "👍" * 30])
def test_other_text_is_no_emoji(text: str) -> None:
    """Letters, digits, spaces and long texts."""
    assert not is_emoji(text)
