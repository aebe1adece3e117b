"""The table of settings in docs/guide/configuration.md, from the settings themselves.

`python -m scripts.reference` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.settings import Settings, masked
from gateway.config.sources import variable_name

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "configuration.md"
TABLES = frozenset({"channels", "agents", "sandboxes", "credentials", "schedules"})
"""Tables of records, which have sections of their own."""


def with_table(text: str) -> str:
    """Return the page with the table that fits the settings; the words around it stay."""
    lines = text.splitlines()
    places = [place for place, line in enumerate(lines) if _is_row(line)]
    if not places or any(after - before != 1 for before, after in pairwise(places)):
        raise ValueError(f"{PAGE.name} must have the rows of settings in one table")
    table = list(rows(Settings))
    return "\n".join([*lines[: places[0]], *table, *lines[places[-1] + 1 :]]) + "\n"


def _is_row(line: str) -> bool:
    return line.startswith("| `") and "`DOVECOTE_" in line


def rows(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the row of each setting: key, default, variable and meaning."""
    for name, about in model.model_fields.items():
        keys = (*above, name)
        if isinstance(about.annotation, type) and issubclass(about.annotation, BaseModel):
            yield from rows(about.annotation, keys)
        elif name not in TABLES:
            yield _row(keys, about)


def _row(keys: tuple[str, ...], about: FieldInfo) -> str:
    if not about.description:
        raise ValueError(f"the setting {'.'.join(keys)} has no description")
    alias = f" ({about.alias})" if about.alias else ""
    name, variable = f"`{'.'.join(keys)}`{alias}", f"`{variable_name(keys)}`"
    return f"| {name} | {_default(about, keys)} | {variable} | {about.description} |"


def _default(about: FieldInfo, keys: tuple[str, ...]) -> str:
    """Return a setting's default as one writes it."""
    if keys == ("data_dir",):
        return "the user's data directory; without a home, `/var/lib/dovecote`"
    if keys == ("roles",):
        return "`all`"
    value: Any = masked(about.default, keys)
    if value in (None, [], ""):
        return "none"
    if isinstance(value, list):
        return f"`{','.join(f'{one:g}' for one in value)}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
