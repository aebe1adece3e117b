"""Settings that are numbers refuse `true`, which Python takes for 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from channels import registry as channel_registry
from gateway.config.load import load
from gateway.config.settings import InvalidSettings
from gateway.records.agent import AgentConfig
from sandbox import registry as sandbox_registry

NUMBERS = [
    ("port", ""),
    ("log_file_mb", ""),
    ("event_log_bytes", ""),
    ("retention", "files"),
    ("attachment_timeout", "files"),
    ("requests", "agent.limits"),
    ("turns", "retention"),
    ("starts", "sandbox"),
]


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize(("name", "table"), NUMBERS)
def test_a_boolean_is_no_number(tmp_path: Path, name: str, table: str, value: str) -> None:
    """The problem names the setting and says that a number is expected."""
    (tmp_path / "dovecote.toml").write_text(f"[{table}]\n{name} = {value}" if table else f"{name} = {value}")
    with pytest.raises(InvalidSettings, match=r"must be a number") as refused:
        load({}, env={}, directory=tmp_path)
    assert (f"{table}." if table else "") + name in str(refused.value)


def _models() -> Iterator[type[BaseModel]]:
    """Yield the settings of all platforms and providers, and an agent's config."""
    yield from (plugin.settings for plugin in channel_registry.built_in().values())
    yield from (plugin.settings for plugin in sandbox_registry.built_in().values())
    yield AgentConfig


@pytest.mark.parametrize("model", list(_models()), ids=lambda model: model.__name__)
def test_a_boolean_is_no_number_of_an_adapter_or_a_record(model: type[BaseModel]) -> None:
    """Each field with a number refuses it, and says that a number is expected."""
    numbers = [
        name
        for name, field in model.model_fields.items()
        if {int, float} & {field.annotation, *get_args(field.annotation)}
    ]
    try:
        model.model_validate({model.model_fields[name].alias or name: True for name in numbers})
    except ValidationError as error:
        found = {str(one["loc"][0]) for one in error.errors() if "must be a number" in one["msg"]}
    else:
        found = set()
    assert found == {model.model_fields[name].alias or name for name in numbers}


@pytest.mark.parametrize(("name", "value"), [("sync_limit_mb", "5"), ("starts", "2")])
def test_numbers_of_files_and_variables_are_accepted(tmp_path: Path, name: str, value: str) -> None:
    """A number in the file and a text in a variable are the same."""
    (tmp_path / "dovecote.toml").write_text(f"[sandbox]\n{name} = {value}")
    from_file = load({}, env={}, directory=tmp_path)
    from_variable = load({}, env={f"DOVECOTE_SANDBOX__{name.upper()}": value}, directory=tmp_path / "none")
    assert getattr(from_file.sandbox, name) == getattr(from_variable.sandbox, name) == int(value)
