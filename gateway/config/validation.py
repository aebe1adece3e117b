"""What is wrong with given settings: in the model's eyes, and in the eyes of the plugins they are for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.setting_types import PROVIDERS, SandboxSettings, sequence_fields
from gateway.config.sources import Layers, Problem, mask, variable

CHANNELS = "dovecote.channels"
SANDBOXES = "dovecote.sandboxes"
"""The entry point groups of the two plug-boards; their names are looked up without loading anything."""


def explain(layers: Layers, error: ErrorDetails, above: tuple[str, ...] = ()) -> Problem:
    """Turn what pydantic found into a problem that names the source and the remedy."""
    keys = _path(layers, (*above, *(str(part) for part in error["loc"])))
    detail = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        detail, remedy = "there is no such setting", "Remove it or correct its name"
    else:
        remedy = f"Set {'.'.join(keys)} or {variable(keys)}{_wanted(layers.root, keys)}"
    given = "" if error["type"] == "missing" else mask(keys, error["input"])
    source = layers.source(keys)
    return Problem(key=".".join(keys), value=given, source=source, detail=detail, remedy=remedy)


def _path(layers: Layers, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Drop what pydantic adds to a path: positions in a list and the branches of a union."""
    known = [source for source in layers.sources if source[:1] == keys[:1]]
    for length in range(len(keys), 0, -1):
        if any(path[:length] == keys[:length] for path in known):
            return keys[:length]
    return keys


def _wanted(root: type[BaseModel], keys: tuple[str, ...]) -> str:
    model: type[BaseModel] = root
    for key in keys:
        about = model.model_fields.get(key)
        if about is None:
            return ""
        if isinstance(about.annotation, type) and issubclass(about.annotation, BaseModel):
            model = about.annotation
            continue
        return f": {about.description}"
    return ""


def plugin_problems(layers: Layers) -> Iterator[Problem]:
    """Hold every channel and sandbox table to the plugin it is for."""
    yield from _channel_problems(layers)
    yield from _sandbox_problems(layers)


def _channel_problems(layers: Layers) -> Iterator[Problem]:
    channels = layers.values.get("channels")
    if not isinstance(channels, dict):
        return
    for name, table in channels.items():
        if isinstance(table, dict):
            kind = str(table.setdefault("kind", name))
            yield from _against_plugin(layers, ("channels", name), table, CHANNELS, kind)


def _sandbox_problems(layers: Layers) -> Iterator[Problem]:
    table = layers.values.get("sandbox")
    sandbox = table if isinstance(table, dict) else {}
    own = SandboxSettings.model_fields
    names = [name for name, inner in sandbox.items() if isinstance(inner, dict) and name not in own]
    chosen = str(sandbox.get("provider", "host"))
    if chosen not in _installed(SANDBOXES):
        yield _not_installed(layers, ("sandbox", "provider"), chosen, SANDBOXES)
    for name in names:
        if name in _installed(SANDBOXES):
            yield from _against_plugin(layers, ("sandbox", name), sandbox[name], SANDBOXES, name)
        elif name not in PROVIDERS:
            yield _not_installed(layers, ("sandbox", name), name, SANDBOXES)


@cache
def _installed(group: str) -> frozenset[str]:
    return frozenset(entry.name for entry in entry_points(group=group))


def _not_installed(layers: Layers, keys: tuple[str, ...], name: str, group: str) -> Problem:
    names = ", ".join(sorted(_installed(group))) or "none"
    return Problem(
        key=".".join(keys),
        value=repr(name),
        source=layers.source(keys),
        detail="is not installed",
        remedy=f"Install its package, or take one of: {names}",
    )


def _against_plugin(
    layers: Layers, keys: tuple[str, ...], table: dict[str, Any], group: str, kind: str
) -> Iterator[Problem]:
    if kind not in _installed(group):
        yield _not_installed(layers, (*keys, "kind"), kind, group)
        return
    try:
        model = _plugin_settings(group, kind)
    except RuntimeError as error:
        remedy = "Reinstall or remove the package that provides it"
        yield Problem(
            key=".".join(keys), value=repr(kind), source=layers.source(keys), detail=str(error), remedy=remedy
        )
        return
    _split_lists(model, table)
    own = {key: value for key, value in table.items() if key != "kind"}
    found = {problem.key: problem for problem in _blanks(layers, keys, own)}
    try:
        TypeAdapter(model).validate_python(own)
    except ValidationError as error:
        found |= {problem.key: problem for problem in (explain(layers, one, keys) for one in error.errors())}
    yield from found.values()


def _plugin_settings(group: str, kind: str) -> type[Any]:
    if group == CHANNELS:
        from channels import registry as channels

        return channels.plugin(kind).settings
    from sandbox import registry as sandboxes

    return sandboxes.plugin(kind).settings


def _split_lists(model: type[Any], table: dict[str, Any]) -> None:
    """Let a variable give a list with commas, as the other settings do."""
    if not issubclass(model, BaseModel):
        return
    for name in sequence_fields(model):
        if isinstance(table.get(name), str):
            table[name] = [part.strip() for part in table[name].split(",") if part.strip()]


def _blanks(layers: Layers, keys: tuple[str, ...], table: dict[str, Any]) -> Iterator[Problem]:
    for name, value in table.items():
        if isinstance(value, str) and not value.strip():
            path = (*keys, name)
            yield Problem(
                key=".".join(path),
                value="''",
                source=layers.source(path),
                detail="is blank",
                remedy="Give it a value, or leave it out to do without",
            )
