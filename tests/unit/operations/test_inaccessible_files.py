"""What an operator reads about files that the gateway cannot open at its start."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.infra.preflight import describe_inaccessible


def test_a_path_that_is_too_long_for_sqlite_is_named(tmp_path: Path) -> None:
    """SQLite itself says no more than that it cannot open the file."""
    data = tmp_path / "/".join(["d" * 100] * 5)
    data.mkdir(parents=True)
    settings = Settings(data_dir=data)
    with pytest.raises(sqlite3.OperationalError) as raised:
        sqlite3.connect(data / "dovecote.db").execute("PRAGMA journal_mode = WAL")
    said = describe_inaccessible(settings, raised.value)
    assert said is not None
    assert f"SQLite cannot open {data / 'dovecote.db'}: with `-wal` the path has" in said
    assert "Choose a shorter data_dir (--data, DOVECOTE_DATA_DIR)" in said


def test_a_file_of_another_user_is_named_with_the_remedy(tmp_path: Path) -> None:
    """The bare error of the system names no remedy; other errors are left as they are."""
    error = PermissionError(13, "Permission denied", str(tmp_path / "lock"))
    said = describe_inaccessible(Settings(data_dir=tmp_path), error)
    assert said is not None
    assert f"{tmp_path / 'lock'}: permission denied. As its owner or as root: `chown " in said
    assert describe_inaccessible(Settings(data_dir=tmp_path), ValueError("other")) is None
