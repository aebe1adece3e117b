"""Migrations make exactly the tables that the code defines."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

import gateway.store.tables  # noqa: F401  (registers its tables, and delivery's)
from delivery.database.engine import metadata
from gateway.migrations import apply_revisions, migrate_up, newest, newest_schema, status
from gateway.store.memory_tables import is_described

OPTIONS: dict[str, Any] = {"compare_type": True, "render_as_batch": True, "include_name": is_described}


async def _inspect_database(url: str, inspect_schema: Any) -> Any:
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(inspect_schema)
    finally:
        await engine.dispose()


def _differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts=OPTIONS)
    return list(compare_metadata(context, metadata))


async def test_a_migrated_database_equals_the_tables(database_url: str) -> None:
    """After every migration nothing is left to add, drop or change."""
    await migrate_up(database_url)
    assert await _inspect_database(database_url, _differences) == []


async def test_status_reports_the_revision_of_a_database(database_url: str) -> None:
    """An empty database has no revision; a migrated one has the newest."""
    empty = await status(database_url)
    await migrate_up(database_url)
    migrated = await status(database_url)
    assert (empty.current, empty.up_to_date) == (None, False)
    assert migrated.up_to_date
    assert migrated.current == newest()


async def test_migrating_twice_changes_nothing(database_url: str) -> None:
    """A second start finds nothing to do."""
    await migrate_up(database_url)
    await migrate_up(database_url)
    assert (await status(database_url)).up_to_date


async def test_processes_that_start_together_take_turns(database_url: str) -> None:
    """Several migrations of one empty database at once end with one schema and no error."""
    await asyncio.gather(*(migrate_up(database_url) for _ in range(3)))
    assert (await status(database_url)).up_to_date


def _inserts(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return sorted(line for line in connection.iterdump() if line.startswith("INSERT INTO"))


async def test_the_newest_schema_is_what_the_revisions_lead_to(tmp_path: Path) -> None:
    """An empty SQLite file gets the tables, indexes and rows that all revisions make, one after the other."""
    stepwise, at_once = tmp_path / "stepwise.db", tmp_path / "at_once.db"
    expected = await apply_revisions(f"sqlite+aiosqlite:///{stepwise}", newest_schema.describe)
    assert newest_schema.FILE.read_text() == expected, "run `python -m gateway.migrations.write schema`"
    await migrate_up(f"sqlite+aiosqlite:///{at_once}")
    assert await apply_revisions(f"sqlite+aiosqlite:///{at_once}", newest_schema.describe) == expected
    assert _inserts(at_once) == _inserts(stepwise) != []
