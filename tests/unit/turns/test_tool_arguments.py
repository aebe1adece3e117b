"""Arguments of a tool call are checked against its schema before anybody is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.tools.step_results import MAX_SUBJECT, describe_call
from gateway.tools.tool import InvalidArguments, validate_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 9},
        "all": {"type": "boolean"},
        "mode": {"type": "string", "enum": ["a", "b"]},
        "name": {"type": "string", "pattern": "^[a-z]+$"},
    },
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "args",
    [
        {"path": "x"},
        {"path": "", "limit": 9, "all": True, "mode": "b", "name": "x"},
        {"path": "x", "limit": None},
    ],
)
def test_arguments_that_match_are_accepted(args: dict[str, Any]) -> None:
    """An optional argument may be missing or null."""
    validate_arguments(SCHEMA, args)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({"path": "x", "command": "ls"}, "no argument 'command'"),
        ({}, "path is missing"),
        ({"path": 1}, "path must be a text"),
        ({"path": "x", "limit": True}, "limit must be a whole number"),
        ({"path": "x", "limit": 10}, "limit must be from 1 to 9"),
        ({"path": "x", "all": 1}, "all must be true or false"),
        ({"path": "x", "mode": "c"}, "mode must be one of a, b"),
        ({"path": "x", "name": "X"}, "name must match"),
    ],
)
def test_arguments_that_do_not_match_are_refused(args: dict[str, Any], part: str) -> None:
    """The error names the argument and what is allowed."""
    with pytest.raises(InvalidArguments, match=part):
        validate_arguments(SCHEMA, args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"command": "make\nmake test", "path": "x"}, "bash: make"),
        ({"path": "a.txt", "limit": 3}, "bash: a.txt"),
        ({"command": "x" * 999}, "bash: " + "x" * MAX_SUBJECT),
        ({"command": 7, "limit": 3}, "bash"),
        ({"command": " \n "}, "bash"),
    ],
)
def test_a_call_is_described_in_a_line(args: dict[str, Any], words: str) -> None:
    """People see the tool and the first line of what it works on."""
    assert describe_call("bash", args) == words
