"""docs/guide/configuration.md lists exactly the settings of the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.settings import Settings, masked
from gateway.config.sources import VENDOR_VARIABLES, variable_name

DOCUMENT = Path(__file__).parents[2] / "docs" / "guide" / "configuration.md"


def rows(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Return the table's row of each setting."""
    for name, about in model.model_fields.items():
        keys = (*above, name)
        if isinstance(about.annotation, type) and issubclass(about.annotation, BaseModel):
            yield from rows(about.annotation, keys)
        elif name not in ("channels", "agents", "sandboxes", "credentials", "schedules"):
            alias = f" ({about.alias})" if about.alias else ""
            cells = (
                f"`{'.'.join(keys)}`{alias}",
                default(about, keys),
                f"`{variable_name(keys)}`",
                about.description,
            )
            yield f"| {' | '.join(map(str, cells))} |"


def default(about: FieldInfo, keys: tuple[str, ...]) -> str:
    """Return a setting's default as one writes it."""
    if keys == ("data_dir",):
        return "the user's data directory"
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


def test_every_setting_is_documented() -> None:
    """The table has each key with its default, its variable and its description from the model."""
    text = DOCUMENT.read_text()
    expected = list(rows(Settings))
    found = [line for line in text.splitlines() if line.startswith("| `") and "`DOVECOTE_" in line]
    assert found == expected, "replace the table by:\n" + "\n".join(expected)


def test_every_vendors_variable_is_documented() -> None:
    """The document lists each external variable that is read."""
    text = DOCUMENT.read_text()
    assert [name for name in VENDOR_VARIABLES if f"`{name}`" not in text] == []
