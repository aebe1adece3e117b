"""Bring a database to the schema of this version, or say how far it is from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from alembic.config import Config

_ADVISORY_LOCK = 0x646F7665636F7465
"""Held on PostgreSQL while migrating, so that replicas that start together take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a database stands: `current` is None before the first migration."""

    current: str | None
    head: str

    @property
    def up_to_date(self) -> bool:
        """Nothing is left to apply."""
        return self.current == self.head


def configuration(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration of this folder, at work on `connection`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    from alembic import command

    command.upgrade(configuration(connection), "head")


def _look(connection: Connection) -> Status:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    head = ScriptDirectory.from_config(configuration()).get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    return Status(current=current, head=head or "")


async def _take_turns(connection: AsyncConnection) -> None:
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})


def _whole(engine: AsyncEngine) -> None:
    """Let SQLite's own transaction span all statements, so that a kill leaves nothing half made."""
    if engine.dialect.name != "sqlite":
        return
    event.listen(
        engine.sync_engine, "connect", lambda connection, _entry: setattr(connection, "isolation_level", None)
    )
    event.listen(
        engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE")
    )


async def _on(database_url: str, work: Any) -> Any:
    engine = create_async_engine(database_url, poolclass=NullPool)
    _whole(engine)
    try:
        async with engine.begin() as connection:
            await _take_turns(connection)
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def newest() -> str:
    """Return the newest revision; its file is named after it, and so are the others, in order."""
    return max(file.name.partition("_")[0] for file in (Path(__file__).parent / "versions").glob("[0-9]*.py"))


def _is_newest(connection: Connection) -> bool:
    """Say whether nothing is to be done, without Alembic: importing it takes longer than all the rest."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return False
    return list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars()) == [newest()]


def _upgrade_if_older(connection: Connection) -> None:
    if not _is_newest(connection):
        _upgrade(connection)


async def migrate_up(database_url: str) -> None:
    """Apply every migration that is missing, in one transaction."""
    await _on(database_url, _upgrade_if_older)


async def status(database_url: str) -> Status:
    """Return where the database stands without changing it."""
    found: Status = await _on(database_url, _look)
    return found
