"""A SQLite file with a damaged page, which a disk or a copy leaves behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from delivery.database.engine import Database, DatabaseUnavailable
from gateway.cli.doctor.check import CheckState
from gateway.cli.doctor.local_checks import check_database
from gateway.cli.errors import CommandFailed
from gateway.cli.machine.backup import backup
from gateway.config.load import load
from gateway.web.http.problems import translate_error

PAGE = 4096


def damaged_file(path: Path) -> Path:
    """Make a file with a damaged table and a sound one."""
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE sound (mark integer)")
        made.execute("CREATE TABLE marks (mark integer)")
        made.execute("INSERT INTO marks VALUES (1)")
        made.commit()
        (page,) = made.execute("SELECT rootpage FROM sqlite_master WHERE name = 'marks'").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(b"Z" * PAGE)
    return path


async def test_a_damaged_page_is_an_error_for_the_operator(tmp_path: Path) -> None:
    """A request that meets it gets 503 with the remedy; the rest of the file goes on, and stays suspect."""
    database = Database(f"sqlite+aiosqlite:///{damaged_file(tmp_path / 'gateway.db')}")
    try:
        async with database.read() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM sound"))).scalar_one() == 0
        assert not database.is_damaged
        with pytest.raises(DatabaseUnavailable, match="restore a backup") as found:
            async with database.read() as connection:
                await connection.execute(text("SELECT mark FROM marks"))
        problem = translate_error(found.value)
        assert (problem.status, "damaged" in problem.detail) == (503, True)
        async with database.begin() as connection:
            await connection.execute(text("INSERT INTO sound VALUES (1)"))
        assert database.is_damaged
        with pytest.raises(DatabaseUnavailable, match="restore a backup"):
            async with database.begin() as connection:
                await connection.execute(text("INSERT INTO marks VALUES (2)"))
    finally:
        await database.close()


def test_the_doctor_reads_the_whole_file(tmp_path: Path) -> None:
    """Damage that no request has met yet is named with the file."""
    settings = load(env={"DOVECOTE_DATA_DIR": str(tmp_path)}, directory=tmp_path)
    settings.data_dir.mkdir(exist_ok=True)
    file = damaged_file(settings.data_dir / "dovecote.db")
    (check,) = check_database(settings)
    assert (check.state, str(file) in check.detail) == (CheckState.FAILED, True)
    assert "restore a backup" in check.remedy


def test_no_backup_is_made_of_it(tmp_path: Path) -> None:
    """A copy with the same damage would take the place of a sound one."""
    directory, target = tmp_path / "data", tmp_path / "backup"
    directory.mkdir()
    damaged_file(directory / "dovecote.db")
    with pytest.raises(CommandFailed, match="nothing was copied"):
        backup(target, data=directory)
    assert list(tmp_path.iterdir()) == [directory]
