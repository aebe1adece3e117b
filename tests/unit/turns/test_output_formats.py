"""The form of an answer: what differs from a schema, in limited time, and the instructions."""

from __future__ import annotations

from typing import Any

import pytest

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
