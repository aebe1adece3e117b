"""What is wrong with a setting is said in the words of a settings file."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.load import load
from gateway.config.settings import InvalidSettings, Settings
from gateway.config.sources import known_keys

WRONG: tuple[Any, ...] = ("no such value", -1, 1.5, True, [], [{}], {}, {"x": {"y": 4}})


def problems_of(value: Any, keys: tuple[str, ...]) -> list[str]:
    """Return what is wrong with the settings if this key has this value."""
    for key in reversed(keys):
        value = {key: value}
    try:
        load(value, env={})
    except InvalidSettings as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("keys", tuple(known_keys(Settings)), ids=".".join)
def test_no_setting_is_explained_in_the_words_of_a_library(keys: tuple[str, ...]) -> None:
    """The classes of Python and the sentences of pydantic do not help to correct a file."""
    texts = [text for wrong in WRONG for text in problems_of(wrong, keys)]
    assert not [text for text in texts if "Input" in text or "should" in text or "dictionary" in text]


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("port",), "many", "must be an integer"),
        (("roles",), 4, "must be a list"),
        (("agent", "limits"), 4, "must be a table"),
        (("log_format",), "xml", 'must be "console" or "json"'),
        (("log_file_mb",), -4, "must be at least 0"),
    ],
)
def test_it_says_what_the_value_must_be(keys: tuple[str, ...], value: Any, said: str) -> None:
    """The line has the key, the value, what it must be, and what to set."""
    (problem,) = problems_of(value, keys)
    assert f"{'.'.join(keys)} = {value!r}" in problem
    assert f": {said}. Set {'.'.join(keys)} or DOVECOTE_" in problem
