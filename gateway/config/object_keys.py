"""The keys that an object of a request or a settings file may have, for errors about one that it may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

MAX_KEY = 64
"""Characters of a key that is compared with others."""

MAX_LISTED = 12
"""The most keys that an error lists."""


def suggest_key(shape: Any, path: Sequence[str | int]) -> str:
    """Return what to write instead of the unknown key at the end of `path`, "" if that cannot be said.

    `shape` is the model, or another annotation, of the value that contains the path. The text is a question
    with the most similar key, or the list of the keys if there are few.
    """
    similar = similar_key(shape, path)
    if similar is not None:
        return f"did you mean {similar}?"
    keys = _keys_beside(shape, path)
    return f"the keys are {', '.join(keys)}" if 0 < len(keys) <= MAX_LISTED else ""


def similar_key(shape: Any, path: Sequence[str | int]) -> str | None:
    """Return the key that an unknown one at the end of `path` resembles; case, `_` and `-` do not count."""
    keys, unknown = _keys_beside(shape, path), str(path[-1]) if path else ""
    if unknown in keys or len(unknown) > MAX_KEY:
        return None
    plain = {_plain(key): key for key in keys}
    found = get_close_matches(_plain(unknown), plain, n=1)
    return plain[found[0]] if found else None


def _keys_beside(shape: Any, path: Sequence[str | int]) -> list[str]:
    return sorted({key for model in _models_at(shape, path[:-1]) for key in _fields(model)})


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def _models_at(shape: Any, path: Sequence[str | int]) -> Iterator[type[BaseModel]]:
    """Yield the models of a value at a path: several if a value on the way may have several types."""
    origin, inner = get_origin(shape), get_args(shape)
    if origin is Annotated:
        yield from _models_at(inner[0], path)
    elif origin in (Union, UnionType):
        for one in inner:
            yield from _models_at(one, path)
    elif isinstance(origin, type) and issubclass(origin, Mapping | Sequence) and path and inner:
        item = inner[-1] if issubclass(origin, Mapping) else inner[0]
        yield from _models_at(item, path[1:])
    elif isinstance(shape, type) and issubclass(shape, BaseModel):
        if not path:
            yield shape
        elif (about := _fields(shape).get(str(path[0]))) is not None:
            yield from _models_at(about.annotation, path[1:])


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {about.alias or name: about for name, about in model.model_fields.items()}
