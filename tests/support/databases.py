"""Databases of both kinds: imported by the conftest of tests that run on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from delivery.database.engine import Database
from migrated import migrated_sqlite, migrated_template
from postgres import PostgresCluster, PostgresUnavailable, postgres_cluster

_WAITING = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


async def until_waiting(database: Database) -> None:
    """Wait until a transaction waits for a lock; on SQLite it waits before its first statement."""
    if database.is_sqlite:
        return
    async with database.read() as connection:
        while not (await connection.execute(_WAITING)).scalar_one():
            await asyncio.sleep(0.01)
            await connection.rollback()  # a transaction sees the activity of its first look


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    """A PostgreSQL cluster for this session."""
    try:
        with postgres_cluster() as running:
            yield running
    except PostgresUnavailable as error:
        pytest.skip(f"PostgreSQL: {error}")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of each kind: empty, unless the test asks for the fixture `database` too."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}"
    running: PostgresCluster = request.getfixturevalue("postgres")
    if "database" in request.fixturenames:
        return running.create_database(template=migrated_template(running))
    return running.create_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    if database_url.startswith("sqlite"):
        await migrated_sqlite(Path(database_url.partition("///")[2]))
    opened = Database(database_url)
    yield opened
    await opened.close()
