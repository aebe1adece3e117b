"""Migrate a database to the schema of this version, or report which revision it has.

A revision file is never edited after it was committed: `checksums.txt` holds the SHA-256 of each, and a test
compares them. A change of the schema is a new revision (`python -m gateway.migrations.write NUMBER MESSAGE`).
An empty SQLite database gets the newest schema at once (`newest_schema`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, event, text
from sqlalchemy.pool import NullPool

from delivery.database import transaction_locks
from delivery.database.async_engine import AsyncEngine, create_async_engine
from delivery.database.postgres import with_failure_detection
from delivery.database.transaction_locks import TransactionLock
from gateway.migrations import newest_schema

if TYPE_CHECKING:
    from alembic.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The revision of a database (`current`, None for an empty one) and the newest revision (`head`)."""

    current: str | None
    head: str
    may_create_tables: bool = True
    """Whether the user of the database may create tables; a SQLite file has no users."""

    @property
    def up_to_date(self) -> bool:
        """Whether every revision is applied."""
        return self.current == self.head


class UnknownRevision(Exception):
    """The database has a revision that this version lacks; the message names both and the remedy."""

    REMEDY = "install the version that migrated the database, or restore a backup from before"

    def __init__(self, current: str) -> None:
        self.detail = f"at {current}, which this version does not know: its newest is {newest()}"
        super().__init__(f"the database is {self.detail}. To continue, {self.REMEDY}")


def configuration(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration for this folder, which migrates `connection`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    from alembic import command

    command.upgrade(configuration(connection), "head")


def _read_status(connection: Connection) -> Status:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    head = ScriptDirectory.from_config(configuration()).get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    return Status(current=current, head=head or "", may_create_tables=_may_create_tables(connection))


def _may_create_tables(connection: Connection) -> bool:
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.scalar(text("SELECT has_schema_privilege(current_schema(), 'CREATE')")))


def _use_one_transaction(engine: AsyncEngine) -> None:
    """Run all statements of SQLite in one transaction, so that a kill leaves no partial migration."""
    if engine.dialect.name != "sqlite":
        return
    event.listen(
        engine.sync_engine,
        "connect",
        lambda connection, _record: setattr(connection, "isolation_level", None),
    )
    event.listen(
        engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE")
    )


Result = TypeVar("Result")


async def _run_in_transaction(database_url: str, work: Callable[[Connection], Result]) -> Result:
    engine = create_async_engine(with_failure_detection(database_url), poolclass=NullPool)
    _use_one_transaction(engine)
    try:
        async with engine.begin() as connection:
            await transaction_locks.acquire(connection, TransactionLock.MIGRATION)
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def _revisions() -> set[str]:
    """Return the revisions of this version: the numbers that the files in `versions` begin with."""
    return {file.name.partition("_")[0] for file in (Path(__file__).parent / "versions").glob("[0-9]*.py")}


def newest() -> str:
    """Return the newest revision, which is the highest number that a file in `versions` begins with."""
    return max(_revisions())


def unknown_revision(current: str | None) -> UnknownRevision | None:
    """Return the error of a database at this revision, or None if this version has the revision."""
    return None if current is None or current in _revisions() else UnknownRevision(current)


def _is_newest(connection: Connection) -> bool:
    """Return whether the newest revision is applied, without importing Alembic, which takes longer.

    Raises UnknownRevision.
    """
    if not connection.dialect.has_table(connection, "alembic_version"):
        return False
    applied = list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
    for unknown in filter(None, map(unknown_revision, applied)):
        raise unknown
    return applied == [newest()]


def _upgrade_if_older(connection: Connection) -> None:
    if newest_schema.is_empty(connection):
        newest_schema.create(connection, newest())
    elif not _is_newest(connection):
        _upgrade(connection)


async def migrate_up(database_url: str) -> None:
    """Apply every missing revision in one transaction; does nothing to a database that has them all.

    Raises UnknownRevision for a database of a newer version.
    """
    await _run_in_transaction(database_url, _upgrade_if_older)


async def apply_revisions(database_url: str, inspect: Callable[[Connection], Result]) -> Result:
    """Apply the missing revisions one after the other, and return what `inspect` finds afterwards."""

    def upgrade_and_inspect(connection: Connection) -> Result:
        _upgrade(connection)
        return inspect(connection)

    return await _run_in_transaction(database_url, upgrade_and_inspect)


async def status(database_url: str) -> Status:
    """Return the revision of a database without changing it."""
    return await _run_in_transaction(database_url, _read_status)
