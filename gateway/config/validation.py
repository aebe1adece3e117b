"""Validate the settings: against the model, and against the plugins they configure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.broken_rules import broken_rules
from gateway.config.installed import installed_entry_points
from gateway.config.object_keys import similar_key, suggest_key
from gateway.config.sandbox_settings import SandboxSettings
from gateway.config.setting_types import KNOWN_PROVIDERS, list_fields
from gateway.config.sources import SettingProblem, SettingSources, mask, variable_name

CHANNEL_GROUP = "dovecote.channels"
SANDBOX_GROUP = "dovecote.sandboxes"
"""The entry point groups of channels and sandboxes; names are looked up without loading anything."""


_OF_KEYS = {"missing": "is required", "extra_forbidden": "there is no such setting"}
"""What errors about a key say, by pydantic's type; the others are about its value."""

OWN_CHANNEL_KEYS = frozenset({"kind", "agent", "paused"})
"""Keys of a `[channels.NAME]` table that are not its adapter's.

They are the platform, the agent that answers, and whether the channel receives nothing.
"""


def adapter_settings(channel: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `[channels.NAME]` table has for its adapter."""
    return {key: value for key, value in channel.items() if key not in OWN_CHANNEL_KEYS}


def to_problems(
    sources: SettingSources, errors: Iterable[ErrorDetails], shape: type[Any], prefix: tuple[str, ...] = ()
) -> Iterator[SettingProblem]:
    """Yield pydantic's errors as one problem for each setting, with its source and remedy.

    `shape` is the model that refused them, of the table at `prefix`.
    """
    found: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for error in errors:
        keys = _path(sources, (*prefix, *(str(part) for part in error["loc"])))
        found.setdefault(keys, []).append(error)
    for keys, group in found.items():
        yield from _setting_problems(sources, keys, group, shape)


def _setting_problems(
    sources: SettingSources, keys: tuple[str, ...], errors: list[ErrorDetails], shape: type[Any]
) -> Iterator[SettingProblem]:
    """Yield a problem for the value, and one for each key of a table that is missing or unknown."""
    of_value = [error for error in errors if error["type"] not in _OF_KEYS]
    for error in errors:
        if error["type"] in _OF_KEYS:
            yield _problem(sources, keys, error, _OF_KEYS[error["type"]], shape)
    if of_value:
        yield _problem(sources, keys, of_value[0], broken_rules(of_value), shape)


def _problem(
    sources: SettingSources, keys: tuple[str, ...], error: ErrorDetails, detail: str, shape: type[Any]
) -> SettingProblem:
    source = sources.source_of(keys)
    if error["type"] == "missing":
        keys = (*keys, str(error["loc"][-1]))  # the source has the table alone
    if error["type"] == "extra_forbidden":
        suggestion = suggest_key(shape, error["loc"])
        remedy = suggestion[:1].upper() + suggestion[1:] if suggestion else "Remove it or correct its name"
    elif (meant := similar_key(shape, error["loc"])) is not None:  # of a table that also has those of plugins
        remedy = f"Did you mean {meant}?"
    else:
        remedy = f"Set {'.'.join(keys)} or {variable_name(keys)}{_expected_value(sources.root, keys)}"
    given = (
        "" if error["type"] in _OF_KEYS else mask(keys, error["input"])
    )  # the value of a misspelt key may be secret
    return SettingProblem(key=".".join(keys), value=given, source=source, detail=detail, remedy=remedy)


def _path(sources: SettingSources, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Remove what pydantic adds to a path: list positions and union branches."""
    known = [source for source in sources.sources if source[:1] == keys[:1]]
    for length in range(len(keys), 0, -1):
        if any(path[:length] == keys[:length] for path in known):
            return keys[:length]
    return keys


def _expected_value(root: type[BaseModel], keys: tuple[str, ...]) -> str:
    model: type[BaseModel] = root
    *tables, last = keys
    for key in tables:
        about = model.model_fields.get(key)
        if about is None or not (
            isinstance(about.annotation, type) and issubclass(about.annotation, BaseModel)
        ):
            return ""
        model = about.annotation
    return f": {model.model_fields[last].description}" if last in model.model_fields else ""


def plugin_problems(sources: SettingSources) -> Iterator[SettingProblem]:
    """Validate every channel and sandbox table against its plugin."""
    yield from _channel_problems(sources)
    yield from _sandbox_problems(sources)


def _channel_problems(sources: SettingSources) -> Iterator[SettingProblem]:
    channels = sources.values.get("channels")
    if not isinstance(channels, dict):
        return
    for name, table in channels.items():
        if isinstance(table, dict):
            kind = str(table.setdefault("kind", name))
            yield from _table_problems(sources, ("channels", name), table, CHANNEL_GROUP, kind)


def _sandbox_problems(sources: SettingSources) -> Iterator[SettingProblem]:
    table = sources.values.get("sandbox")
    sandbox = table if isinstance(table, dict) else {}
    own = SandboxSettings.model_fields
    names = [name for name, inner in sandbox.items() if isinstance(inner, dict) and name not in own]
    chosen = str(sandbox.get("provider", "host"))
    if chosen not in _installed(SANDBOX_GROUP):
        yield _not_installed(sources, ("sandbox", "provider"), chosen, SANDBOX_GROUP)
    for name in names:
        if name in _installed(SANDBOX_GROUP):
            yield from _table_problems(sources, ("sandbox", name), sandbox[name], SANDBOX_GROUP, name)
        elif name not in KNOWN_PROVIDERS:
            yield _not_installed(sources, ("sandbox", name), name, SANDBOX_GROUP)


@cache
def _installed(group: str) -> frozenset[str]:
    return frozenset(entry.name for entry in installed_entry_points(group))


def _not_installed(sources: SettingSources, keys: tuple[str, ...], name: str, group: str) -> SettingProblem:
    names = ", ".join(sorted(_installed(group))) or "none"
    return SettingProblem(
        key=".".join(keys),
        value=repr(name),
        source=sources.source_of(keys),
        detail="is not installed",
        remedy=f"Install its package, or take one of: {names}",
    )


def _table_problems(
    sources: SettingSources, keys: tuple[str, ...], table: dict[str, Any], group: str, kind: str
) -> Iterator[SettingProblem]:
    if kind not in _installed(group):
        yield _not_installed(sources, (*keys, "kind"), kind, group)
        return
    try:
        model = _plugin_settings(group, kind)
    except RuntimeError as error:
        remedy = "Reinstall or remove the package that provides it"
        yield SettingProblem(
            key=".".join(keys),
            value=repr(kind),
            source=sources.source_of(keys),
            detail=str(error),
            remedy=remedy,
        )
        return
    _split_lists(model, table)
    found = {problem.key: problem for problem in _blank_values(sources, keys, table)}
    own = adapter_settings(table) if group == CHANNEL_GROUP else table
    try:
        TypeAdapter(model).validate_python(own)
    except ValidationError as error:
        found |= {problem.key: problem for problem in to_problems(sources, error.errors(), model, keys)}
    yield from found.values()


def _plugin_settings(group: str, kind: str) -> type[Any]:
    if group == CHANNEL_GROUP:
        from channels import registry as channels

        return channels.plugin(kind).settings
    from sandbox import registry as sandboxes

    return sandboxes.plugin(kind).settings


def _split_lists(model: type[Any], table: dict[str, Any]) -> None:
    """Accept comma-separated lists in variables of plugins, as for other settings."""
    if not issubclass(model, BaseModel):
        return
    for name, words in list_fields(model).items():
        if isinstance(table.get(name), str):
            text = table[name].strip()
            table[name] = (
                text if text in words else [part.strip() for part in text.split(",") if part.strip()]
            )


def _blank_values(
    sources: SettingSources, keys: tuple[str, ...], table: dict[str, Any]
) -> Iterator[SettingProblem]:
    for name, value in table.items():
        if isinstance(value, str) and not value.strip():
            path = (*keys, name)
            yield SettingProblem(
                key=".".join(path),
                value="''",
                source=sources.source_of(path),
                detail="is blank",
                remedy="Give it a value, or leave it out to do without",
            )
