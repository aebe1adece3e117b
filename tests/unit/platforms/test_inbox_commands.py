"""Commands on platforms without commands of their own."""

from __future__ import annotations

import pytest

from channels.inbox.commands import parse_mentioned


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("memory", ("memory", "")),
        ("Usage", ("usage", "")),
        ("queue steer", ("queue", "steer")),
        ("/remind in 20m drink tea", ("remind", "in 20m drink tea")),
        ("/title The loft", ("title", "The loft")),
        ("title", None),
        ("schedule a meeting", None),
        ("model the data", None),
        ("approve of this", None),
        ("/unknown", None),
    ],
)
def test_only_a_command_is_one_after_a_mention(text: str, command: tuple[str, str] | None) -> None:
    """A lone word is a command, more words are a message unless they begin with a slash."""
    assert parse_mentioned(text) == command
