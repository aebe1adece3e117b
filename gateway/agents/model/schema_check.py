"""Compare JSON with a schema of a client, in limited time.

Checked are types, `required`, `properties`, `additionalProperties`, `items`, `enum`, `const`, `anyOf`,
`oneOf`, `allOf`, references within the schema (JSON Schema, draft 2020-12), and what `schema_limits` checks.
Other keywords are not: a pattern of a client could keep the gateway busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import Repr
from typing import Any

from gateway.agents.model.schema_limits import MAX_SHOWN, find_beyond_limit

MAX_COST = 160_000
"""The most work of a comparison, in entries of the schema's lists; a part of the schema costs PART_COST."""

PART_COST = 4
MAX_DEPTH = 100

_SHORTENED = Repr()
_SHORTENED.maxlist, _SHORTENED.maxstring = 20, MAX_SHOWN

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


class _LimitReached(Exception):
    """The comparison takes too long."""


def find_mismatch(schema: Mapping[str, Any], value: object) -> str | None:
    """Return the first difference in words; None if there is none, or the comparison takes too long."""
    try:
        return _Comparison(schema).find(schema, value, "the answer", 0)
    except (_LimitReached, RecursionError):
        return None


class _Comparison:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._cost = 0
        self._resolved: dict[str, object] = {}
        self._choices: dict[int, frozenset[tuple[bool, object]]] = {}
        """The texts, numbers and constants of each `enum`, by the list's identity."""
        self._sizes: dict[int, int] = {}

    def find(self, schema: object, value: object, place: str, depth: int) -> str | None:
        """Return the first difference of a value from a part of the schema."""
        self._charge(PART_COST)
        if depth > MAX_DEPTH:
            raise _LimitReached
        if schema is False:
            return f"{place} is not allowed"
        if not isinstance(schema, Mapping):
            return None
        self._charge(len(_list(schema.get("type"))) + len(_list(schema.get("required"))))
        if "uniqueItems" in schema:
            self._charge(self._size(value))
        return (
            self._find_in_value(schema, value, place)
            or find_beyond_limit(schema, value, place)
            or self._find_in_choices(schema, value, place, depth + 1)
            or self._find_in_object(schema, value, place, depth + 1)
            or self._find_in_list(schema, value, place, depth + 1)
        )

    def _charge(self, entries: int) -> None:
        """Count what is compared; raises _LimitReached."""
        self._cost += entries
        if self._cost > MAX_COST:
            raise _LimitReached

    def _size(self, value: object) -> int:
        """Return how many values a value has, itself included."""
        if not isinstance(value, list | dict):
            return 1
        if id(value) not in self._sizes:
            parts = value.values() if isinstance(value, dict) else value
            self._sizes[id(value)] = 1 + sum(map(self._size, parts))
        return self._sizes[id(value)]

    def _find_in_value(self, schema: Mapping[str, Any], value: object, place: str) -> str | None:
        given = schema.get("type")
        types = [given] if isinstance(given, str) else _list(given)
        if types and not any(_has_type(value, name) for name in types):
            return f"{place} is not of the type {' or '.join(map(str, types))}"
        if isinstance(schema.get("enum"), list) and not self._is_listed(schema["enum"], value):
            return f"{place} is none of {_shown(schema['enum'])}"
        if "const" in schema and not self._is_constant(schema["const"], value):
            return f"{place} is not {_shown(schema['const'])}"
        return None

    def _is_listed(self, choices: list[Any], value: object) -> bool:
        """Return whether a value is one of an `enum`; only arrays and objects are compared one by one."""
        if isinstance(value, list | dict):
            self._charge(len(choices) + self._size(value))
            return value in choices
        simple = self._choices.get(id(choices))
        if simple is None:
            simple = frozenset(_as_key(one) for one in choices if not isinstance(one, list | dict))
            self._choices[id(choices)] = simple
        return _as_key(value) in simple

    def _is_constant(self, constant: object, value: object) -> bool:
        self._charge(self._size(value))
        return constant == value and isinstance(constant, bool) == isinstance(value, bool)

    def _find_in_choices(
        self, schema: Mapping[str, Any], value: object, place: str, depth: int
    ) -> str | None:
        if isinstance(schema.get("$ref"), str):
            found = self.find(self._resolve(schema["$ref"]), value, place, depth)
            if found:
                return found
        for part in _list(schema.get("allOf")):
            if found := self.find(part, value, place, depth):
                return found
        for name in ("anyOf", "oneOf"):
            choices = _list(schema.get(name))
            found_all = [self.find(one, value, place, depth) for one in choices]
            if found_all and all(found_all):
                return f"{place} matches no part of {name} (the first: {found_all[0]})"
        return None

    def _find_in_object(self, schema: Mapping[str, Any], value: object, place: str, depth: int) -> str | None:
        if not isinstance(value, dict):
            return None
        for name in _list(schema.get("required")):
            if isinstance(name, str) and name not in value:
                return f"{place} has no {name!r}"
        known = schema.get("properties")
        properties = known if isinstance(known, Mapping) else {}
        has_patterns = "patternProperties" in schema
        for name, part in value.items():
            rest = True if has_patterns else schema.get("additionalProperties", True)
            inner = f"{place}.{name}" if name in properties else f"a field of {place} with another name"
            if found := self.find(properties.get(name, rest), part, inner, depth):
                return found
        return None

    def _find_in_list(self, schema: Mapping[str, Any], value: object, place: str, depth: int) -> str | None:
        if not isinstance(value, list) or "prefixItems" in schema:
            return None
        for index, part in enumerate(value):
            if found := self.find(schema.get("items", True), part, f"{place}[{index}]", depth):
                return found
        return None

    def _resolve(self, reference: str) -> object:
        """Return the part of the schema that a reference names (RFC 6901); True for any other."""
        if not reference.startswith("#"):
            return True
        if reference not in self._resolved:
            self._resolved[reference] = self._follow(reference)
        return self._resolved[reference]

    def _follow(self, reference: str) -> object:
        found: object = self._root
        for step in filter(None, reference.removeprefix("#").split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                return True
            found = found[name]
        return found


def _has_type(value: object, name: object) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(str(name), (object,)))


def _as_key(value: object) -> tuple[bool, object]:
    """Return what is equal for texts and numbers that are equal in JSON, where true is not 1."""
    return isinstance(value, bool), value


def _shown(value: object) -> str:
    """Return the beginning of a part of a schema, however long it is."""
    return _SHORTENED.repr(value)[:MAX_SHOWN]


def _list(given: object) -> list[Any]:
    return given if isinstance(given, list) else []
