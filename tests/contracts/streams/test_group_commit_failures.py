"""Group commit when SQLite or the writers fail in the middle: no caller waits for ever, no lock remains."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from delivery.database.engine import Database, DatabaseUnavailable


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Open a file in which a word that names no known list is refused by the commit, not by the insert."""
    opened = Database(f"sqlite+aiosqlite:///{tmp_path / 'words.db'}")
    async with opened.begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE lists (name TEXT PRIMARY KEY)")
        await connection.exec_driver_sql(
            "CREATE TABLE words (word TEXT, list TEXT REFERENCES lists (name) DEFERRABLE INITIALLY DEFERRED)"
        )
    yield opened
    await opened.close()


async def _write(database: Database, word: str, known: str | None = None) -> None:
    async with database.begin() as connection:
        await connection.exec_driver_sql("INSERT INTO words VALUES (?, ?)", (word, known))


def _written(database: Database) -> list[str]:
    connection = sqlite3.connect(str(database.url.database))
    try:
        return [row[0] for row in connection.execute("SELECT word FROM words ORDER BY rowid")]
    finally:
        connection.close()


async def test_a_commit_that_fails_fails_for_all_and_the_next_one_writes(database: Database) -> None:
    """Every writer of the batch gets the error of the commit, and another batch begins afterwards."""
    ends = await asyncio.gather(
        _write(database, "one"), _write(database, "two", "unknown"), return_exceptions=True
    )
    assert [type(end).__name__ for end in ends] == ["IntegrityError", "IntegrityError"]
    await _write(database, "three")
    assert _written(database) == ["three"]


async def test_closing_writes_what_was_begun(database: Database) -> None:
    """A close amid writers comes after the commit of those before it."""
    writers = [asyncio.create_task(_write(database, f"word{number}")) for number in range(5)]
    await asyncio.sleep(0)
    await database.close()
    await asyncio.gather(*writers)
    assert len(_written(database)) == 5


async def test_a_writer_that_swallows_the_rollback_of_sqlite_fails(database: Database) -> None:
    """What SQLite has rolled back is never reported as written."""

    async def lose() -> None:
        async with database.begin() as connection:
            await connection.exec_driver_sql("INSERT INTO words VALUES ('lost', NULL)")
            await connection.exec_driver_sql("ROLLBACK")

    with pytest.raises(DatabaseUnavailable):
        await lose()
    await _write(database, "kept")
    assert _written(database) == ["kept"]


async def test_other_processes_can_write_after_every_cancellation(database: Database) -> None:
    """A writer that is cancelled at any point, alone or before another one, leaves no open transaction."""
    other = sqlite3.connect(str(database.url.database), timeout=10, isolation_level=None)
    for steps in range(12):
        tasks = [asyncio.create_task(_write(database, f"word{place}")) for place in range(1 + steps % 2)]
        for _ in range(steps // 2):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _write(database, "kept")
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    other.close()
    assert _written(database).count("kept") == 12
