"""Validation errors as problems of the client's own input: its keys, and the words of JSON.

pydantic reports more than a client has to know: the names of types in a path, one error for each type that
a value could have had, and lengths of lists after invalid items were dropped. A problem here is the one thing
to correct at one place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.broken_rules import broken_rule, expected_value
from gateway.config.object_keys import suggest_key
from gateway.config.sources import is_secret, mask_credentials
from gateway.records.errors import json_pointer
from sandbox.config import ConfigProblem

_PRIVATE = frozenset({"envVars", "settings", "secret", "env_vars", "key"})
_SHOWN = 80
"""Characters of a given value that a problem repeats."""

MAX_ERRORS = 100
"""Errors that are explained, which are compared with each other; an input has as many as fit in a request."""

MAX_SUGGESTIONS = 8
"""Unknown keys that are compared with those that exist: an input may have as many as fit in a request."""

_LENGTHS = frozenset({"too_short", "too_long"})


def to_problems(
    error: ValidationError, given: Any, shape: Any, *, below: str = ""
) -> tuple[ConfigProblem, ...]:
    """Return pydantic's errors as problems: where in `given`, what is allowed and what was given.

    `shape` is the model that refused the input. A value that fits none of several types is one problem, which
    names all of them. The first `MAX_SUGGESTIONS` keys that do not exist come with the one that was meant. Of
    more than `MAX_ERRORS` errors the first are reported, and how many there are.
    """
    found: dict[str, list[ErrorDetails]] = {}
    suggestions: dict[str, str] = {}
    every_error = error.errors(include_url=False)
    for one in every_error[:MAX_ERRORS]:
        place = tuple(_place(one, given))
        pointer = json_pointer(place)
        found.setdefault(pointer, []).append(one)
        if one["type"] == "extra_forbidden" and len(suggestions) < MAX_SUGGESTIONS:
            suggestions[pointer] = suggest_key(shape, place)
    problems = tuple(
        ConfigProblem(
            pointer=below + pointer, detail=_detail(errors, below) + _suggested(suggestions.get(pointer))
        )
        for pointer, every in found.items()
        if (errors := _relevant(every, has_deeper=_has_deeper(pointer, found)))
    )
    if (left := len(every_error) - MAX_ERRORS) > 0:
        return (*problems, ConfigProblem(pointer=below, detail=f"{left} more errors are not listed"))
    return problems


def _suggested(text: str | None) -> str:
    return f"; {text}" if text else ""


def _has_deeper(pointer: str, found: Iterable[str]) -> bool:
    return any(other.startswith(f"{pointer}/") for other in found)


def _relevant(errors: Sequence[ErrorDetails], *, has_deeper: bool) -> Sequence[ErrorDetails]:
    """Return the errors of one place without those that another one makes untrue.

    If a part of the value is wrong, the value has one of its possible types: it is not reported that it has
    none of the others. The same holds if the value has a wrong length or range.
    """
    true = [one for one in errors if not _is_length_of_valid_items(one)]
    specific = [one for one in true if expected_value(one) is None]
    return specific if specific or has_deeper else true


def _is_length_of_valid_items(error: ErrorDetails) -> bool:
    """Return whether the value itself has a permitted length: pydantic counts only its valid items."""
    given, limits = error["input"], error.get("ctx", {})
    return (
        error["type"] in _LENGTHS
        and isinstance(given, Sequence)
        and limits.get("min_length", 0) <= len(given) <= limits.get("max_length", len(given))
    )


def _place(found: ErrorDetails, given: Any) -> Iterator[str | int]:
    """Yield the keys that lead to an error in the input, without the names that pydantic gives to types."""
    for part in found["loc"]:
        keys = range(len(given)) if isinstance(given, list | tuple) else given
        if isinstance(keys, Mapping | range) and part in keys:
            given = given[part]
            yield part
    if found["type"] == "missing":
        yield found["loc"][-1]


def _detail(errors: Sequence[ErrorDetails], below: str) -> str:
    expected = [text for text in map(expected_value, errors) if text is not None]
    texts = [f"must be {' or '.join(dict.fromkeys(expected))}"] if expected else []
    texts += [broken_rule(one) for one in errors if expected_value(one) is None]
    return " or: ".join(dict.fromkeys(texts)) + _shown(errors[0], below)


def _shown(error: ErrorDetails, below: str) -> str:
    """Return what was given, as JSON, unless it may be secret or is not a single value."""
    given = error["input"]
    path = [*below.split("/"), *(str(part) for part in error["loc"])]
    hidden = not _PRIVATE.isdisjoint(path) or is_secret(path, given)
    of_value = error["type"] not in ("extra_forbidden", "missing")
    if not of_value or hidden or not isinstance(given, str | int | float | bool | None):
        return ""
    shown = mask_credentials(json.dumps(given, ensure_ascii=False))
    return f" (given: {shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + '…'})"
