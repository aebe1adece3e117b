"""What an operator reads about files that the gateway cannot open at its start."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.config.settings import Settings
from gateway.infra.preflight import describe_exhaustion, describe_inaccessible


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


def test_a_database_that_lacks_space_is_named_with_its_disk(tmp_path: Path) -> None:
    """A migration at the start fails so too; the disk of a PostgreSQL server is not that of the data."""
    with closing(sqlite3.connect(tmp_path / "dovecote.db")) as connection:
        connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError, match="full") as raised:
            connection.execute("CREATE TABLE rows (n INTEGER)")
    full = "the database cannot write: the disk is full; an operator must free space"
    said = describe_exhaustion(Settings(data_dir=tmp_path), raised.value)
    assert said is not None
    assert said.startswith(f"{full}. data_dir = {tmp_path} (--data, DOVECOTE_DATA_DIR) has ")
    on_server = Settings(data_dir=tmp_path, database_url=SecretStr("postgresql+psycopg://h/d"))
    assert describe_exhaustion(on_server, raised.value) == full
