"""Configs taken apart and put together: secrets by JSON pointer, merge patches (RFC 7396)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr
from pydantic_core import to_jsonable_python

from gateway.records.errors import pointer
from gateway.records.fields import MASK


def separate(value: Any, *, texts_below: str | None = None) -> tuple[Any, dict[str, str]]:
    """Return the value as JSON with MASK for every secret, and the secrets by pointer.

    A secret is a SecretStr anywhere, or any text directly below the pointer `texts_below`.
    """
    secrets: dict[str, str] = {}
    return _masked(value, (), secrets, texts_below), secrets


def _masked(value: Any, path: tuple[str, ...], secrets: dict[str, str], below: str | None) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(inner, (*path, str(key)), secrets, below) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(inner, (*path, str(place)), secrets, below) for place, inner in enumerate(value)]
    if isinstance(value, SecretStr):
        secrets[pointer(path)] = value.get_secret_value()
        return MASK
    if isinstance(value, str) and below is not None and pointer(path[:-1]) == below:
        secrets[pointer(path)] = value
        return MASK
    return to_jsonable_python(value)


def restore(config: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the config with every secret in its place again."""
    whole: dict[str, Any] = copy.deepcopy(dict(config))
    for where, text in secrets.items():
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in where.split("/")[1:]]
        place: Any = whole
        for part in above:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(last) if isinstance(place, list) else last] = text
    return whole


def merge(config: Any, patch: Any) -> Any:
    """Apply a merge patch; MASK where something stands keeps what stands there."""
    if not isinstance(patch, Mapping):
        return config if patch == MASK and isinstance(config, str) else patch
    merged = dict(config) if isinstance(config, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
