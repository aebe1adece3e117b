"""Settings that are numbers refuse `true`, which Python takes for 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import InvalidSettings

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


@pytest.mark.parametrize(("name", "value"), [("sync_limit_mb", "5"), ("starts", "2")])
def test_numbers_of_files_and_variables_are_accepted(tmp_path: Path, name: str, value: str) -> None:
    """A number in the file and a text in a variable are the same."""
    (tmp_path / "dovecote.toml").write_text(f"[sandbox]\n{name} = {value}")
    from_file = load({}, env={}, directory=tmp_path)
    from_variable = load({}, env={f"DOVECOTE_SANDBOX__{name.upper()}": value}, directory=tmp_path / "none")
    assert getattr(from_file.sandbox, name) == getattr(from_variable.sandbox, name) == int(value)
