"""What vendors are asked to enforce of a client's schema: nothing that refuses answers which match it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.agents.clients.enforced_schema import enforced_schema

NAMED = {"type": "object", "properties": {"name": {"type": "string"}}}
CLOSED = NAMED | {"required": [], "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (NAMED, CLOSED),
        (
            {"type": "string", "pattern": "^a+$", "maxLength": 3, "title": "A"},
            {"type": "string", "title": "A"},
        ),
        ({"type": "array", "items": {"const": 1}, "maxItems": 2}, {"type": "array", "items": {"enum": [1]}}),
        ({"type": "string", "format": ["date"]}, {"type": "string"}),
        (NAMED | {"required": ["name", ["name"]]}, CLOSED | {"required": ["name"]}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"oneOf": [{"enum": ["a"], "type": "string"}, NAMED]},
            {"anyOf": [{"enum": ["a"], "type": "string"}, CLOSED]},
        ),
        (
            {"$defs": {"it": NAMED}, "type": "array", "items": {"$ref": "#/$defs/it"}},
            {"$defs": {"it": CLOSED}, "type": "array", "items": {"$ref": "#/$defs/it"}},
        ),
    ],
)
def test_what_vendors_know_is_sent(given: dict[str, Any], sent: dict[str, Any]) -> None:
    """Other keywords are in the instructions only, and the answer is checked for them."""
    assert enforced_schema(given) == sent


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"type": "object"},
        NAMED | {"additionalProperties": {"type": "integer"}},
        NAMED | {"patternProperties": {"^x": {}}},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"type": "array"},
        {"allOf": [NAMED]},
        {"$ref": "#/$defs/missing"},
        {"anyOf": []},
        NAMED | {"anyOf": [NAMED]},
        {"enum": [{}]},
        {"type": "text"},
    ],
)
def test_what_a_vendor_would_refuse_or_narrow_is_not_sent(given: dict[str, Any] | None) -> None:
    """Objects with fields of any name are one example: the instructions alone describe them."""
    assert enforced_schema(given) is None


def test_a_deep_schema_is_not_sent() -> None:
    """Its conversion ends."""
    given: dict[str, Any] = {"type": "string"}
    for _level in range(5000):
        given = {"type": "array", "items": given}
    assert enforced_schema(given) is None
