"""What pydantic's errors say, in the words of JSON or of a settings file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

_ARRAYS = ("tuple_type", "list_type", "set_type", "frozen_set_type", "iterable_type")
_OBJECTS = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")
_EXPECTED_TYPES: Mapping[str, str] = {
    **dict.fromkeys(_ARRAYS, "an array"),
    **dict.fromkeys(_OBJECTS, "an object"),
    "string_type": "a string",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "none_required": "null",
    "path_type": "a path",
    "ip_v4_network": "an IPv4 network",
    "ip_v6_network": "an IPv6 network",
}
"""What the value must be, by the error that says it has another type of JSON."""

_CHOICES = frozenset({"literal_error", "enum"})
"""Errors of a value that is none of those in a list."""

_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "finite_number": lambda _: "must be a finite number",
    "greater_than": lambda limit: f"must be more than {limit['gt']}",
    "greater_than_equal": lambda limit: f"must be at least {limit['ge']}",
    "less_than": lambda limit: f"must be less than {limit['lt']}",
    "less_than_equal": lambda limit: f"must be at most {limit['le']}",
    "string_too_short": lambda limit: f"must have at least {_count(limit['min_length'], 'character')}",
    "string_too_long": lambda limit: f"must have at most {_count(limit['max_length'], 'character')}",
    "string_pattern_mismatch": lambda limit: f"must match the pattern {limit['pattern']}",
    "too_short": lambda limit: f"must have at least {_count(limit['min_length'], 'item')}",
    "too_long": lambda limit: f"must have at most {_count(limit['max_length'], 'item')}",
    "string_unicode": lambda _: "must be UTF-8",
    "extra_forbidden": lambda _: "there is no such key",
    "missing": lambda _: "is required",
}
"""The text of an error, by its type; an unlisted one keeps pydantic's text."""

_OF_SETTINGS = {"an array": "a list", "an object": "a table"}
"""Words of settings files in place of those of JSON."""


def expected_value(error: ErrorDetails) -> str | None:
    """Return what the value must be instead; None if it may be of this type but is not valid."""
    if error["type"] in _CHOICES:
        return str(error.get("ctx", {})["expected"]).replace("'", '"')
    return _EXPECTED_TYPES.get(error["type"])


def broken_rule(error: ErrorDetails) -> str:
    """Return which rule the value breaks."""
    words = _WORDS.get(error["type"])
    if words is not None:
        return words(error.get("ctx", {}))
    return error["msg"].removeprefix("Value error, ").replace("Input should", "should")


def broken_rules(errors: Iterable[ErrorDetails]) -> str:
    """Return what a setting must be, of the errors that pydantic found at its one place."""
    every = tuple(errors)
    expected = [text for text in map(expected_value, every) if text is not None]
    names = dict.fromkeys(_OF_SETTINGS.get(text, text) for text in expected)
    texts = [f"must be {' or '.join(names)}"] if names else []
    texts += [broken_rule(one) for one in every if expected_value(one) is None]
    return " or: ".join(dict.fromkeys(texts))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
