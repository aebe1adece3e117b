"""Validate the arguments of a tool call against the tool's JSON schema (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.tools.tool import InvalidArguments

_TYPES: Mapping[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "boolean": (bool,)}
_TYPE_NAMES = {"string": "a text", "integer": "a whole number", "boolean": "true or false"}


def validate_arguments(schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArguments unless the arguments match the schema.

    Supports what schemas of tools use: required, string, integer and boolean properties, enum, pattern,
    minimum and maximum. An optional argument may be null.
    """
    properties, required = schema["properties"], schema.get("required", ())
    unknown = sorted(args.keys() - properties.keys())
    if unknown:
        known = ", ".join(properties) or "none"
        raise InvalidArguments(f"there is no argument {unknown[0]!r}; the arguments are: {known}")
    for name in required:
        if args.get(name) is None:
            raise InvalidArguments(f"{name} is missing")
    for name, value in args.items():
        if value is not None:
            _validate_value(name, value, properties[name])


def _validate_value(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    expected = schema["type"]
    is_bool = isinstance(value, bool)
    if not isinstance(value, _TYPES[expected]) or is_bool != (expected == "boolean"):
        raise InvalidArguments(f"{name} must be {_TYPE_NAMES[expected]}, not {value!r}")
    if "enum" in schema and value not in schema["enum"]:
        raise InvalidArguments(f"{name} must be one of {', '.join(schema['enum'])}, not {value!r}")
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        raise InvalidArguments(f"{name} must match {schema['pattern']}, not {value!r}")
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    if expected == "integer" and not least <= value <= most:
        raise InvalidArguments(f"{name} must be from {least} to {most}, not {value}")
