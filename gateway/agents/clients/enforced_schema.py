"""The part of a client's JSON schema that Anthropic and Google enforce while the model answers.

Vendors refuse keywords that they do not know, and want objects whose fields are all named. What they are not
given is in the instructions and checked afterwards. Source: `transform_schema` of Anthropic's SDK (2.11) and
"Structured outputs" of both vendors' documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 50

_NAMED = ("title", "description")
_DEFINITIONS = "$defs"
_REFERENCE = f"#/{_DEFINITIONS}/"
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})


class _NotEnforceable(Exception):
    """No vendor can enforce the schema without refusing answers that it allows."""


def enforced_schema(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what a vendor may enforce of a schema; None if that would refuse answers that match it."""
    definitions = (schema or {}).get(_DEFINITIONS, {})
    if not schema or not isinstance(definitions, Mapping):
        return None
    try:
        found = {name: _part(part, definitions, 0) for name, part in definitions.items()}
        return ({_DEFINITIONS: found} if found else {}) | _part(schema, definitions, 0)
    except _NotEnforceable:
        return None


def _part(schema: object, definitions: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        raise _NotEnforceable
    if "$ref" in schema:
        return {"$ref": _reference(schema["$ref"], definitions)}
    named = {name: schema[name] for name in _NAMED if isinstance(schema.get(name), str)}
    choices = _choices(schema)
    if choices is not None:
        return named | {"anyOf": [_part(one, definitions, depth + 1) for one in choices]}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        kind = {"type": schema["type"]} if isinstance(schema.get("type"), str) else {}
        return named | kind | {"enum": _plain(values)}
    return named | _typed(schema, definitions, depth + 1)


def _reference(reference: object, definitions: Mapping[str, Any]) -> str:
    if not isinstance(reference, str) or reference.removeprefix(_REFERENCE) not in definitions:
        raise _NotEnforceable
    return reference


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the alternatives of a schema; None if it has none."""
    types = schema.get("type")
    if isinstance(types, list):
        return [{**schema, "type": one} for one in types]
    choices = schema.get("anyOf", schema.get("oneOf"))
    is_list = isinstance(choices, list) and choices
    if "allOf" in schema or (choices is not None and ("properties" in schema or not is_list)):
        raise _NotEnforceable
    return list(choices) if is_list else None


def _plain(values: object) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise _NotEnforceable
    if not all(one is None or isinstance(one, str | int | float) for one in values):
        raise _NotEnforceable
    return values


def _typed(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> dict[str, Any]:
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _NotEnforceable
    if kind == "object":
        return _object(schema, definitions, depth)
    found = {"type": kind}
    form = schema.get("format")
    if kind == "string" and isinstance(form, str) and form in _FORMATS:
        found["format"] = form
    if kind == "array":
        if "prefixItems" in schema:
            raise _NotEnforceable
        return found | {"items": _part(schema.get("items"), definitions, depth)}
    return found


def _object(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return an object without further fields; one whose fields have no names cannot be enforced."""
    fields, required = schema.get("properties"), schema.get("required", [])
    is_open = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
    if is_open or not isinstance(fields, Mapping) or not isinstance(required, list):
        raise _NotEnforceable
    return {
        "type": "object",
        "properties": {name: _part(part, definitions, depth) for name, part in fields.items()},
        "required": [name for name in required if isinstance(name, str) and name in fields],
        "additionalProperties": False,
    }
