"""Databases of both kinds: imported by the conftest of tests that run on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from delivery.database.engine import Database
from gateway.migrations import migrate_up
from postgres import Cluster, NoServer, cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL cluster for this session."""
    try:
        with cluster() as running:
            yield running
    except NoServer as error:
        pytest.skip(f"PostgreSQL: {error}")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}"
    running: Cluster = request.getfixturevalue("postgres")
    return running.fresh()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    await migrate_up(database_url)
    opened = Database(database_url)
    yield opened
    await opened.close()
