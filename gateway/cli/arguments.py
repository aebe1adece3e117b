"""Arguments KEY=VALUE of commands."""

from __future__ import annotations

import json
from typing import Any

from gateway.cli.errors import UsageError


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse KEY=VALUE arguments; a value that is JSON is parsed as JSON."""
    found: dict[str, Any] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{key!r} is not KEY=VALUE")
        found[key.strip()] = _parse_value(value)
    return found


def _parse_value(text: str) -> Any:
    if text[:1] in {"[", "{"} or text in {"true", "false", "null"}:
        try:
            return json.loads(text)
        except ValueError as error:
            raise UsageError(f"{text!r} starts like JSON but is invalid: {error}") from error
    return text
