"""A PostgreSQL server that only reads, as after a fail-over, is a database that is unavailable."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import text

from delivery.database.engine import Database, DatabaseReadOnly, DatabaseUnavailable
from gateway.web.http.problems import translate_error
from postgres import PostgresCluster


async def test_a_server_that_only_reads_is_unavailable_until_it_writes(postgres: PostgresCluster) -> None:
    """Reads go on, a request that writes gets 503, and the first write after the change succeeds."""
    url = postgres.create_database()
    database = Database(url)
    try:
        async with database.begin() as connection:
            await connection.execute(text("CREATE TABLE marks (mark integer)"))
        _set_read_only(database, "on")
        await database.close()  # connections that are open have the earlier setting
        async with database.read() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM marks"))).scalar_one() == 0
        with pytest.raises(DatabaseUnavailable, match="read-only") as refused:
            await _write(database)
        assert await database.is_read_only()
        problem = translate_error(refused.value)
        assert (problem.status, "read-only" in problem.detail) == (503, True)
        _set_read_only(database, "off")
        await _write(database)
        assert not await database.is_read_only()
    finally:
        await database.close()


async def _write(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(text("INSERT INTO marks VALUES (1)"))


def _set_read_only(database: Database, state: str) -> None:
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(
            f"ALTER DATABASE {database.url.database} SET default_transaction_read_only = {state}"
        )


async def test_a_file_that_only_can_be_read_is_named_as_that(tmp_path: Path) -> None:
    """A read-only SQLite file is not reported as a database that does not answer."""
    file = tmp_path / "read-only.db"
    with closing(sqlite3.connect(file)) as made:
        made.execute("CREATE TABLE marks (mark integer)")
    database = Database(f"sqlite+aiosqlite:///{quote(file.as_uri())}?mode=ro&uri=true")
    try:
        with pytest.raises(DatabaseReadOnly, match="make it writable"):
            await _write(database)
    finally:
        await database.close()
