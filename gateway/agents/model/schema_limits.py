"""Limits and formats of a JSON schema: numbers, lengths, and texts such as dates.

Each check takes microseconds, whatever the value. Patterns are not checked: also a linear engine needs up to
a second to compile one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import date, time
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeGuard

MAX_SHOWN = 80

_NUMBERS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "less than"),
    "maximum": (operator.le, "more than"),
    "exclusiveMinimum": (operator.gt, "not more than"),
    "exclusiveMaximum": (operator.lt, "not less than"),
}
_LENGTHS: Mapping[type[str | list[Any] | dict[str, Any]], tuple[str, str, str]] = {
    str: ("minLength", "maxLength", "characters"),
    list: ("minItems", "maxItems", "items"),
    dict: ("minProperties", "maxProperties", "fields"),
}
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_FORMATTED = 200
"""Characters of a text of a known format."""


def find_beyond_limit(schema: Mapping[str, Any], value: object, place: str) -> str | None:
    """Return in words which limit or format of a schema a value does not keep; None if it keeps all."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _find_in_number(schema, value, place)
    for kind, names in _LENGTHS.items():
        if isinstance(value, kind):
            return (
                _find_in_length(schema, len(value), place, names)
                or _find_in_format(schema, value, place)
                or _find_repeated(schema, value, place)
            )
    return None


def _find_in_number(schema: Mapping[str, Any], value: float, place: str) -> str | None:
    for name, (keeps, words) in _NUMBERS.items():
        limit = schema.get(name)
        if _is_number(limit) and not keeps(value, limit):
            return f"{place} is {words} {str(limit)[:MAX_SHOWN]}"
    step = schema.get("multipleOf")
    if _is_whole(step) and _is_whole(value) and step and value % step:
        return f"{place} is no multiple of {str(step)[:MAX_SHOWN]}"
    return None


def _find_in_length(
    schema: Mapping[str, Any], length: int, place: str, names: tuple[str, str, str]
) -> str | None:
    least, most, unit = schema.get(names[0]), schema.get(names[1]), names[2]
    if _is_number(least) and length < least:
        return f"{place} has less than {str(least)[:MAX_SHOWN]} {unit}"
    if _is_number(most) and length > most:
        return f"{place} has more than {str(most)[:MAX_SHOWN]} {unit}"
    return None


def _find_repeated(schema: Mapping[str, Any], value: object, place: str) -> str | None:
    if schema.get("uniqueItems") is not True or not isinstance(value, list):
        return None
    seen: set[object] = set()
    for index, item in enumerate(value):
        if (found := _hashable(item)) in seen:
            return f"{place}[{index}] is there twice"
        seen.add(found)
    return None


def _hashable(value: object) -> object:
    """Return a value that is equal to those that are equal in JSON, where true is not 1."""
    if isinstance(value, list):
        return (list, *map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((name, _hashable(part)) for name, part in value.items())
    return (bool, value) if isinstance(value, bool) else value


def _find_in_format(schema: Mapping[str, Any], value: object, place: str) -> str | None:
    name = schema.get("format")
    if not isinstance(value, str) or not isinstance(name, str) or name not in _FORMATS:
        return None
    has_format = len(value) <= _MAX_FORMATTED and _FORMATS[name](value)
    return None if has_format else f"{place} does not have the format {name}"


def _is_number(limit: object) -> TypeGuard[float]:
    return isinstance(limit, int | float) and not isinstance(limit, bool)


def _is_whole(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool)


def _is_date(text: str) -> bool:
    return bool(_DATE.fullmatch(text)) and _can_parse(date.fromisoformat, text)


def _is_time(text: str) -> bool:
    return bool(_TIME.fullmatch(text.upper())) and _can_parse(time.fromisoformat, text.upper())


def _is_date_time(text: str) -> bool:
    return _is_date(text[:10]) and text[10:11] in {"T", "t", " "} and _is_time(text[11:])


def _is_email(text: str) -> bool:
    name, _, host = text.partition("@")
    return bool(name and host) and "@" not in host and not any(one.isspace() for one in text)


def _can_parse(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date-time": _is_date_time,
    "date": _is_date,
    "time": _is_time,
    "uuid": lambda text: bool(_UUID.fullmatch(text.lower())),
    "ipv4": lambda text: _can_parse(IPv4Address, text),
    "ipv6": lambda text: "%" not in text and _can_parse(IPv6Address, text),
    "email": _is_email,
}
"""The checks of the formats that OpenAI's clients use (RFC 3339, RFC 9562); others are not checked."""
