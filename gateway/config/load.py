"""Load the settings from flags, environment, .env and dovecote.toml. No other code reads the environment.

Commands that run a gateway read the working directory, because that is where an operator keeps its files.
Commands that send a key to a gateway do not: a directory of another user would choose the address.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_config_path
from pydantic import ValidationError
from pydantic_settings import (
    DotEnvSettingsSource,
)

from gateway.config.consistency import inconsistencies
from gateway.config.settings import DEFAULT_FILE, InvalidSettings, Settings
from gateway.config.sources import PREFIX, SettingProblem, SettingSources
from gateway.config.validation import plugin_problems, to_problems

CONFIG_VARIABLE = "DOVECOTE_CONFIG"
"""Names the settings file, as `--config` does. A file cannot name another file."""


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    env: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """Read the settings; raises Misconfigured with every problem.

    `flags` are by dotted key, None meaning not given. `config` or DOVECOTE_CONFIG must exist when it is
    named; otherwise `dovecote.toml` in `directory` (the working directory) is read if it is there. `.env`
    in that directory is always read.
    """
    variables = os.environ if env is None else env
    where = directory or Path.cwd()
    named = config or _named_file(variables)
    layers = SettingSources(root=Settings)
    layers.add_file(named or where / DEFAULT_FILE, required=named is not None)
    _add_dotenv(layers, where / ".env")
    return _finish(layers, variables, flags)


def load_for_client(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings of a command that calls a gateway; raises Misconfigured with every problem.

    The file is `config`, DOVECOTE_CONFIG, or `dovecote.toml` in the user's configuration directory. No file
    of the working directory is read.
    """
    variables = os.environ if env is None else env
    named = config or _named_file(variables)
    layers = SettingSources(root=Settings)
    if (file := named or user_file()) is not None:
        layers.add_file(file, required=named is not None)
    return _finish(layers, variables, flags)


def user_file() -> Path | None:
    """Return the settings file in the user's configuration directory; None for a user without a home."""
    with suppress(RuntimeError):
        return user_config_path("dovecote") / DEFAULT_FILE
    return None


def ignored_files(config: Path | None, *, directory: Path | None = None) -> tuple[str, ...]:
    """Return the names of the settings files in the working directory that a client command did not read."""
    where = directory or Path.cwd()
    read = config or _named_file(os.environ)
    return tuple(
        name
        for name in (DEFAULT_FILE, ".env")
        if (where / name).is_file() and (read is None or (where / name).resolve() != read.resolve())
    )


def _named_file(variables: Mapping[str, str]) -> Path | None:
    named = variables.get(CONFIG_VARIABLE, "").strip()
    return Path(named) if named else None


def _finish(
    layers: SettingSources, variables: Mapping[str, str], flags: Mapping[str, Any] | None
) -> Settings:
    layers.add_variables({name: value for name, value in variables.items() if name != CONFIG_VARIABLE})
    layers.add_flags(flags or {})
    return _validate(layers)


def environment_without_ours() -> dict[str, str]:
    """Return the environment without our own variables, for a gateway that must not share our settings."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}


def environment(name: str) -> str:
    """Return a variable of the environment; empty if it is not set."""
    return os.environ.get(name, "")


def wants_traces() -> bool:
    """Return whether OpenTelemetry's variables name a trace endpoint; its SDK reads the others."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    named = any(
        os.environ.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )
    return named and not off and os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"


def _add_dotenv(sources: SettingSources, path: Path) -> None:
    if not path.is_file():
        return
    try:
        source = DotEnvSettingsSource(Settings, env_file=path, case_sensitive=True)
    except (OSError, UnicodeDecodeError) as error:
        sources.reject_file(path, f"cannot be read: {error}", "Make it a readable UTF-8 file")
    else:
        sources.add_variables(source.env_vars, source=".env")


def _validate(sources: SettingSources) -> Settings:
    of_plugins = list(plugin_problems(sources))  # first: it fills in kinds and splits lists
    problems = list(sources.problems)
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(sources.values)
    except ValidationError as error:
        problems += to_problems(sources, error.errors(), Settings)
    if settings is not None:
        problems += inconsistencies(sources, settings)
    problems += of_plugins
    if problems or settings is None:
        raise InvalidSettings(tuple(problems), _valid_part(sources.values, problems))
    return settings


def _valid_part(values: Mapping[str, Any], problems: Iterable[SettingProblem]) -> Settings | None:
    """Return the settings without those that have a problem; None if they are invalid even so."""
    kept = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
    for problem in problems:
        name, *below = problem.key.split(".")
        table = kept.get(name)
        if below and isinstance(table, dict):
            table.pop(below[0], None)
        else:
            kept.pop(name, None)
    with suppress(ValidationError):
        return Settings.model_validate(kept)
    return None
