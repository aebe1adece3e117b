"""Where settings come from: flags over variables over `.env` over `dovecote.toml`, each with its source."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel

PREFIX = "DOVECOTE_"
SECRET_KEY_PATTERN = re.compile(
    r"(token|secret|password|passphrase|(?<!public_)key)s?$|_url$|^(openai|anthropic|google)$", re.IGNORECASE
)
SECRET_TABLES = frozenset({"headers", "env", "envVars", "env_vars"})
"""Tables whose values are secrets, whatever their keys: headers of requests, variables of programs."""

MAX_LEVELS = 64
"""The nested tables and lists that a value may have; code that follows them needs a stack frame for each."""

_TOO_DEEP = f"is nested in more than {MAX_LEVELS} levels"
_FLATTEN = "Remove the tables and lists that nest in each other"

URL_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")

VENDOR_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "OPENAI_API_KEY": ("vendors", "openai_api_key"),
    "OPENAI_BASE_URL": ("vendors", "openai_base_url"),
    "ANTHROPIC_API_KEY": ("vendors", "anthropic_api_key"),
    "ANTHROPIC_BASE_URL": ("vendors", "anthropic_base_url"),
    "GEMINI_API_KEY": ("vendors", "google_api_key"),
    "GOOGLE_API_KEY": ("vendors", "google_api_key"),
    "GOOGLE_GEMINI_BASE_URL": ("vendors", "google_base_url"),
    "OLLAMA_HOST": ("vendors", "ollama_url"),
    "SANDBOX_PROVIDER": ("sandbox", "provider"),
    "AGENTRUN_ACCESS_KEY_ID": ("sandbox", "agentrun", "access_key_id"),
    "AGENTRUN_ACCESS_KEY_SECRET": ("sandbox", "agentrun", "access_key_secret"),
    "AGENTRUN_ACCOUNT_ID": ("sandbox", "agentrun", "account_id"),
    "AGENTRUN_REGION": ("sandbox", "agentrun", "region"),
    "E2B_API_KEY": ("sandbox", "e2b", "api_key"),
    "E2B_TEMPLATE": ("sandbox", "e2b", "template"),
    "E2B_DOMAIN": ("sandbox", "e2b", "domain"),
    "DAYTONA_API_KEY": ("sandbox", "daytona", "api_key"),
    "DAYTONA_SERVER_URL": ("sandbox", "daytona", "api_url"),
    "DAYTONA_API_URL": ("sandbox", "daytona", "api_url"),
    "DAYTONA_TARGET": ("sandbox", "daytona", "target"),
    "DOCKER_HOST": ("sandbox", "docker", "host"),
    "SANDBOX_FN_MOUNT_NET": ("sandbox", "lambda", "mount_net"),
    "SANDBOX_FN_MOUNT_NONET": ("sandbox", "lambda", "mount_nonet"),
    "SANDBOX_FN_NOMOUNT_NET": ("sandbox", "lambda", "nomount_net"),
    "SANDBOX_FN_NOMOUNT_NONET": ("sandbox", "lambda", "nomount_nonet"),
    "NATS_BIN": ("nats_bin",),
}
"""Variables without our prefix that are accepted all the same; blank ones count as absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingProblem:
    """One problem of the settings: the key, the given value (masked), its source, and the remedy."""

    key: str
    value: str
    source: str
    detail: str
    remedy: str

    def __str__(self) -> str:
        given = f" = {self.value}" if self.value else ""
        return f"{self.key}{given} ({self.source}): {self.detail}. {self.remedy}"


def mask(path: Iterable[str], value: object) -> str:
    """Show a value as it was given, unless its key names a secret."""
    if is_secret(path, value):
        return "'***'" if str(value).strip() else "''"
    shown = repr(value) if isinstance(value, str | bool | int | float | list) else f"<{type(value).__name__}>"
    shown = mask_credentials(shown)
    return shown if len(shown) <= 80 else f"{shown[:77]}…'"  # noqa: PLR2004 - a line of a terminal


def is_secret(path: Iterable[str], value: object) -> bool:
    """Return whether the key at a path, or a table that contains it, has secret values."""
    *above, last = ["", *(part for part in path if not part.isdigit())]
    in_table = (bool(SECRET_TABLES.intersection(above[-1:])) and len(above) > 1) or "secret" in above
    return in_table or bool(SECRET_KEY_PATTERN.search(last) and not _is_plain_url(value))


def mask_credentials(text: str) -> str:
    """Replace the user and password of URLs in a text."""
    return URL_CREDENTIALS.sub("***@", text)


def _is_plain_url(value: object) -> bool:
    try:
        parts = urlsplit(str(value))
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and not parts.username and not parts.query


@dataclass(slots=True)
class SettingSources:
    """The values merged so far: later layers win. Remembers each value's source, and every problem met."""

    root: type[BaseModel]
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[tuple[str, ...], str] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)

    def add_file(self, path: Path, *, required: bool) -> None:
        """Add a TOML file with higher precedence; a file that was named explicitly must exist."""
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            _require_flat(table)
        except FileNotFoundError:
            if required:
                self.reject_file(path, "there is no such file", "Make one with `dovecote init`")
        except OSError as error:
            is_directory = isinstance(error, IsADirectoryError)
            remedy = "Name a file in it, such as dovecote.toml" if is_directory else "Make it readable"
            self.reject_file(path, f"cannot be read: {error.strerror}", remedy)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            self.reject_file(path, f"is no TOML: {error}", "Correct the line named")
        except RecursionError:
            self.reject_file(path, _TOO_DEEP, _FLATTEN)
        else:
            for keys, value in _leaves(table):
                self._set(keys, value, path.name)

    def reject_file(self, path: Path, detail: str, remedy: str) -> None:
        """Note that a file cannot be used."""
        self.problems.append(
            SettingProblem(
                key="config", value=repr(str(path)), source=path.name, detail=detail, remedy=remedy
            )
        )

    def add_variables(self, variables: Mapping[str, str | None], *, source: str = "") -> None:
        """Lay environment variables on top; those of ours that name no setting are problems."""
        for name, keys in VENDOR_VARIABLES.items():
            given = (variables.get(name) or "").strip()
            if given:
                self._set(keys, _with_scheme(name, given), source or name)
        for name, value in variables.items():
            if name.upper().startswith(PREFIX):
                self._add_variable(name, value or "", source)

    def _add_variable(self, name: str, value: str, source: str) -> None:
        segments = name[len(PREFIX) :].lower().split("__")
        keys = self._resolve(segments)
        if keys is None:
            self._reject_name(name, source, segments)
            return
        origin = f"{name} in {source}" if source else name
        try:
            self._set(keys, _decode(value), origin)
        except RecursionError:
            self.problems.append(
                SettingProblem(key=".".join(keys), value="", source=origin, detail=_TOO_DEEP, remedy=_FLATTEN)
            )

    def _reject_name(self, name: str, source: str, segments: list[str]) -> None:
        known = [variable_name(keys) for keys in known_keys(self.root)]
        near = get_close_matches(PREFIX + "__".join(segments).upper(), known, n=1)
        remedy = (
            f"Did you mean {near[0]}?" if near else "Unset it; `dovecote config schema` lists all settings"
        )
        self.problems.append(
            SettingProblem(
                key=name,
                value="",
                source=source or "environment",
                detail="no setting has this name",
                remedy=remedy,
            )
        )

    def _resolve(self, segments: list[str]) -> tuple[str, ...] | None:
        model: type[BaseModel] | None = self.root
        keys: list[str] = []
        for index, segment in enumerate(segments):
            if model is None or not segment:
                return None
            name = _field(model, segment)
            if name is None:
                free = _allows_extra(model) and len(segments) > index + 1
                return (*keys, *self._existing_spelling(keys, segments[index:])) if free else None
            keys.append(name)
            inner = model.model_fields[name].annotation
            if get_origin(inner) is dict:
                return (*keys, *self._existing_spelling(keys, segments[index + 1 :]))
            model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
        return tuple(keys)

    def _existing_spelling(self, keys: list[str], rest: list[str]) -> list[str]:
        """Match names to the spelling of a lower layer: variables cannot contain dashes or capitals."""
        table: Any = self.values
        for key in keys:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        written: list[str] = []
        for segment in rest:
            names = table if isinstance(table, dict) else {}
            match = next((n for n in names if n.lower().replace("-", "_") == segment), segment)
            written.append(match)
            table = names.get(match, {})
        return written

    def add_flags(self, flags: Mapping[str, Any]) -> None:
        """Lay command-line flags on top, by dotted key; None means not given."""
        for name, value in flags.items():
            if value is not None:
                self._set(tuple(name.split(".")), value, "--" + name.replace("_", "-"))

    def _set(self, keys: tuple[str, ...], value: object, source: str) -> None:
        if isinstance(value, Mapping) and value:
            for inner, leaf in _leaves(value):
                self._set((*keys, *inner), leaf, source)
            return
        keys = canonical_keys(self.root, keys)
        table = self.values
        for key in keys[:-1]:
            below = table.get(key)
            table[key] = table = below if isinstance(below, dict) else {}
        if isinstance(value, Mapping) and isinstance(table.get(keys[-1]), dict):
            return  # an empty table only says that it exists
        table[keys[-1]] = value
        self.sources[keys] = source

    def source_of(self, keys: tuple[str, ...]) -> str:
        """Return the source of the value at `keys` (or inside it, or around it)."""
        for known, source in self.sources.items():
            if known[: len(keys)] == keys or keys[: len(known)] == known:
                return source
        return "default"


def _leaves(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*prefix, str(key)))
        else:
            yield (*prefix, str(key)), value


def _with_scheme(name: str, value: str) -> str:
    return f"http://{value}" if name == "OLLAMA_HOST" and "://" not in value else value


def _decode(value: str) -> object:
    if value[:1] not in {"[", "{"}:
        return value
    try:
        decoded: object = json.loads(value)
    except ValueError:
        return value
    _require_flat(decoded)
    return decoded


def _require_flat(value: object) -> None:
    """Raise RecursionError for a value of more levels than any setting has, as a parser does for far more."""
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [inner for one in level for inner in _values(one)]
        if not level:
            return
    raise RecursionError


def _values(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _field(model: type[BaseModel], segment: str) -> str | None:
    for name, about in model.model_fields.items():
        if segment in {name, (about.alias or name).lower()}:
            return name
    return None


def canonical_keys(model: type[BaseModel] | None, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Spell the path of a setting by field names, whatever alias was used."""
    if model is None or not keys:
        return keys
    names = {about.alias: name for name, about in model.model_fields.items() if about.alias}
    name = names.get(keys[0], keys[0])
    about = model.model_fields.get(name)
    inner = about.annotation if about else None
    below = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return (name, *canonical_keys(below, keys[1:]))


def _allows_extra(model: type[BaseModel]) -> bool:
    return model.model_config.get("extra") == "allow"


def known_keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every setting; free tables are named by NAME."""
    for name, about in model.model_fields.items():
        inner = about.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from known_keys(inner, (*prefix, name))
        elif get_origin(inner) is dict and get_args(inner):
            yield (*prefix, name, "NAME", "KEY")
        else:
            yield (*prefix, name)
    if _allows_extra(model):
        yield (*prefix, "NAME", "KEY")


def variable_name(keys: Iterable[str]) -> str:
    """Name the environment variable of a setting."""
    return PREFIX + "__".join(keys).upper().replace("-", "_")
