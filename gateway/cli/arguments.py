"""Arguments KEY=VALUE of commands."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from gateway.cli.errors import UsageError

_JSON_STARTS = {"[", "{"}
_JSON_WORDS = {"true", "false", "null"}


def parse_settings(pairs: list[str], *, any_json: bool = False) -> dict[str, Any]:
    """Parse KEY=VALUE arguments: JSON objects, lists, true, false and null, and other values as texts.

    With `any_json` numbers and texts in quotes are JSON too. Settings of channels have ids of digits, which
    are texts.
    """
    found: dict[str, Any] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{key!r} is not KEY=VALUE")
        found[key.strip()] = _parse_value(value, any_json=any_json)
    return found


def _parse_value(text: str, *, any_json: bool) -> Any:
    if text[:1] in _JSON_STARTS or text in _JSON_WORDS:
        try:
            return json.loads(text)
        except ValueError as error:
            raise UsageError(f"{text!r} starts like JSON but is invalid: {error}") from error
    if any_json:
        with suppress(ValueError):
            return json.loads(text, parse_constant=_refuse)
    return text


def _refuse(word: str) -> None:
    """Raise ValueError for NaN and infinities, which are not JSON."""
    raise ValueError(word)
