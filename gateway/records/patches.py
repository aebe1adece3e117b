"""Separate secrets from configs by JSON pointer, and apply merge patches (RFC 7396)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr
from pydantic_core import to_jsonable_python

from gateway.records.errors import json_pointer
from gateway.records.fields import MASK


def extract_secrets(value: Any, *, texts_below: str | None = None) -> tuple[Any, dict[str, str]]:
    """Return the value as JSON with MASK for every secret, and the secrets by pointer.

    A secret is a SecretStr anywhere, or any text directly below the pointer `texts_below`.
    """
    secrets: dict[str, str] = {}
    return _mask(value, (), secrets, texts_below), secrets


def _mask(value: Any, path: tuple[str, ...], secrets: dict[str, str], below: str | None) -> Any:
    if isinstance(value, Mapping):
        return {key: _mask(inner, (*path, str(key)), secrets, below) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(inner, (*path, str(place)), secrets, below) for place, inner in enumerate(value)]
    if isinstance(value, SecretStr):
        secrets[json_pointer(path)] = value.get_secret_value()
        return MASK
    if isinstance(value, str) and below is not None and json_pointer(path[:-1]) == below:
        secrets[json_pointer(path)] = value
        return MASK
    return to_jsonable_python(value)


def insert_secrets(config: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the config with every secret in its place again."""
    whole: dict[str, Any] = copy.deepcopy(dict(config))
    for where, text in secrets.items():
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in where.split("/")[1:]]
        place: Any = whole
        for part in above:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(last) if isinstance(place, list) else last] = text
    return whole


def merge_patch(config: Any, patch: Any) -> Any:
    """Apply a merge patch; MASK keeps the text that is stored there."""
    if not isinstance(patch, Mapping):
        return config if patch == MASK and isinstance(config, str) else patch
    merged = dict(config) if isinstance(config, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def value_at(config: Mapping[str, Any], pointer: str) -> str:
    """Return the text at a pointer (RFC 6901) in a config that has it."""
    place: Any = config
    for escaped in pointer.split("/")[1:]:
        part = escaped.replace("~1", "/").replace("~0", "~")
        place = place[int(part)] if isinstance(place, list) else place[part]
    return str(place)
