"""The form of an answer: what differs from a schema, in limited time, and the instructions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from channels.testing.line_counter import count_lines
from gateway.agents.model.output_formats import add_format, bare_json, find_fault
from gateway.agents.model.schema_check import find_mismatch
from gateway.agents.port import OutputFormat

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "kind": {"enum": ["a", 1]},
        "friends": {"type": "array", "items": {"$ref": "#"}},
        "pet": {"anyOf": [{"$ref": "#/$defs/cat"}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"cat": {"type": "object", "properties": {"says": {"const": "meow"}}, "required": ["says"]}},
}


@pytest.mark.parametrize(
    "value",
    [
        {"name": "Ann"},
        {"name": "Ann", "age": 3, "kind": "a", "friends": [{"name": "Bob", "age": None}]},
        {"name": "Ann", "age": 3.0, "kind": 1, "pet": {"says": "meow"}},
        {"name": "Ann", "pet": None},
    ],
)
def test_a_value_that_matches(value: Any) -> None:
    """Types, choices, references and recursion."""
    assert find_mismatch(PERSON, value) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "the answer is not of the type object"),
        ({}, "the answer has no 'name'"),
        ({"name": 1}, "the answer.name is not of the type string"),
        ({"name": "Ann", "age": True}, "the answer.age is not of the type integer or null"),
        ({"name": "Ann", "age": 1.5}, "the answer.age is not of the type integer or null"),
        ({"name": "Ann", "kind": True}, "the answer.kind is none of"),
        ({"name": "Ann", "more": 1}, "a field of the answer with another name is not allowed"),
        ({"name": "Ann", "friends": [{"name": "Bob"}, {}]}, "the answer.friends[1] has no 'name'"),
        ({"name": "Ann", "pet": {"says": "woof"}}, "the answer.pet matches no part of anyOf"),
    ],
)
def test_a_value_that_does_not_match(value: Any, words: str) -> None:
    """The first difference is named by its place."""
    assert (find_mismatch(PERSON, value) or "").startswith(words)


@pytest.mark.parametrize(
    ("schema", "good", "bad", "words"),
    [
        ({"minimum": 1, "maximum": 5}, (1, 5, 2.5), (0, 5.1), "less than 1|more than 5"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, (0.5,), (0, 1), "not more than 0|not less than 1"),
        ({"multipleOf": 5}, (0, 10, 2.5), (7,), "no multiple of 5"),
        ({"minLength": 2, "maxLength": 3}, ("ab", "äöü"), ("a", "abcd"), "(less|more) than . characters"),
        ({"minItems": 1, "maxItems": 2}, ([1], [1, 2]), ([], [1, 2, 3]), "(less|more) than . items"),
        (
            {"uniqueItems": True},
            ([1, True, "1"], [[1], [True]], [], {"a": 1}),
            ([1, 1.0], [{"a": 1, "b": [2]}, {"b": [2], "a": 1}]),
            "is there twice",
        ),
        ({"maxProperties": 1}, ({}, {"a": 1}), ({"a": 1, "b": 2},), "more than 1 fields"),
        ({"minimum": 9, "minLength": 9, "format": "uuid"}, (None, True, [], {}), (1, "a"), "than 9"),
        (
            {"format": "date-time"},
            ("2026-11-29T10:00:00Z", "2026-11-29t10:00:00.25+01:00"),
            ("2026-11-29", "2026-13-29T10:00:00Z", "2026-11-29T10:00:00", "now", "2" * 5000),
            "the format date-time",
        ),
        ({"format": "date"}, ("2028-02-29",), ("2027-02-29", "20270228"), "the format date"),
        ({"format": "time"}, ("10:00:00Z",), ("25:00:00Z", "10:00"), "the format time"),
        ({"format": "uuid"}, ("01a2b3c4-0000-4000-8000-0123456789ab",), ("{0}", "1"), "the format uuid"),
        ({"format": "email"}, ("ann@example.org",), ("ann", "a@b@c", "@"), "the format email"),
        ({"format": "ipv4"}, ("127.0.0.1",), ("127.0.0.256", "::1"), "the format ipv4"),
        ({"format": "ipv6"}, ("::1",), ("::g", "1.2.3.4"), "the format ipv6"),
        ({"format": "color", "minLength": "2", "maximum": True}, ("a", 5), (), ""),
    ],
)
def test_limits_and_formats(schema: dict[str, Any], good: Any, bad: Any, words: str) -> None:
    """What exceeds a limit or lacks a format is named; other types, formats and limits do not count."""
    assert [one for one in good if find_mismatch(schema, one) is not None] == []
    assert [one for one in bad if not re.search(words, find_mismatch(schema, one) or "")] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        {
            "$defs": {f"n{level}": {"anyOf": [{"$ref": f"#/$defs/n{level + 1}"}] * 9} for level in range(50)}
            | {"n50": False},
            "$ref": "#/$defs/n0",
        },
        {"type": "string", "pattern": "^(a+)+$"},
    ],
)
def test_no_schema_keeps_the_gateway_busy(schema: dict[str, Any]) -> None:
    """References in circles, choices that multiply and backtracking patterns end at once, as a match."""
    assert find_mismatch(schema, "a" * 100_000 + "!") is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 3, "enum": 4, "required": 5, "properties": [], "items": "x", "anyOf": {}, "$ref": 6},
        {"type": "unknown", "properties": {"a": None}, "$ref": "https://elsewhere.test/schema"},
        {"$ref": "#/$defs/missing"},
        {"required": [["a"], {"a": 1}, None]},
        {"type": [{}], "additionalProperties": None},
    ],
)
def test_a_schema_that_is_none_raises_nothing(schema: dict[str, Any]) -> None:
    """What is not JSON schema is the vendor's to refuse."""
    for value in ({"a": [1]}, [{"a": 1}], "a", None, True):
        find_mismatch(schema, value)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a": NaN}', "1", "no JSON"])
def test_an_answer_that_is_no_object(text: str) -> None:
    """Each is a fault of its own words, and none raises an error."""
    response: Any = {"kind": "response", "parts": [{"part_kind": "text", "content": text}]}
    assert (find_fault(response, OutputFormat()) or "").startswith("The answer is not ")


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('```\n{"a": "```"}\n```\n', '{"a": "```"}'),
        (' {"a": 1}\n', '{"a": 1}'),
        ("```json {}```", "```json {}```"),
    ],
)
def test_a_fence_is_taken_off(text: str, bare: str) -> None:
    """Only a fence around the whole answer."""
    assert bare_json(text, OutputFormat()) == bare


def test_the_instructions_contain_the_form() -> None:
    """Instructions gain the schema, and stay as they are without a form."""
    given = add_format("Be brief.", OutputFormat(schema=PERSON, description="A person."))
    assert given.startswith("Be brief.\n\nA person.\n")
    assert '"says"' in given
    assert add_format("Be brief.", None) == "Be brief."


NUMBERS = list(range(2000))
OFTEN = {"anyOf": [{"$ref": "#/$defs/part"}] * 2000}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [str(number) for number in NUMBERS]}}, ["1999"] * 2000),
        ({"items": {"required": ["a"] * 2000}}, [{"a": 1}] * 2000),
        ({"items": {"type": ["null"] * 2000 + ["integer"]}}, NUMBERS),
        ({"items": {"$ref": "#" + "/a" * 2000}, "a": True}, NUMBERS),
        (OFTEN | {"$defs": {"part": {"uniqueItems": True}}}, [NUMBERS]),
        (OFTEN | {"$defs": {"part": {"enum": [NUMBERS, [*NUMBERS, 1]]}}}, [*NUMBERS, 2]),
    ],
    ids=["enum", "required", "type", "reference", "unique", "arrays"],
)
def test_schemas_with_long_lists_take_bounded_work(schema: dict[str, Any], value: list[Any]) -> None:
    """An enum of 10,000 texts for 10,000 items stopped the process for half a minute."""
    assert count_lines(lambda: find_mismatch(schema, value)) < 1_000_000


@pytest.mark.parametrize(
    ("schema", "value", "is_allowed"),
    [
        ({"enum": [1, "a", [1], {"b": True}]}, 1.0, True),
        ({"enum": [1, "a", [1], {"b": True}]}, True, False),
        ({"enum": [1, "a", [1], {"b": True}]}, [1], True),
        ({"enum": [1, "a", [1], {"b": True}]}, {"b": True}, True),
        ({"enum": [1, "a", [1], {"b": True}]}, None, False),
        ({"const": False}, 0, False),
        ({"const": [1, 2]}, [1, 2], True),
    ],
)
def test_values_are_equal_as_in_json(schema: dict[str, Any], value: object, is_allowed: bool) -> None:
    """1 and 1.0 are the same number, and true is no number."""
    assert (find_mismatch(schema, value) is None) is is_allowed
