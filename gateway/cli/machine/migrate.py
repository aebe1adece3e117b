"""`dovecote migrate`: the schema of the database, and the way from the SQLite file to PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.cli.database import database_status, translate_database_errors
from gateway.cli.errors import CommandFailed, ExitCode, UsageError
from gateway.cli.group import Config, Data, Json, group, load_settings, local
from gateway.cli.output import print_json
from gateway.cli.progress import Progress, progress

if TYPE_CHECKING:
    from gateway.config.settings import Settings

migrate = group("Migrate the database: to this version's schema, or from SQLite to PostgreSQL.")


@local(migrate, "up")
def migrate_up(*, config: Config = None, data: Data = None) -> None:
    """Migrate the database to this version's schema (`serve` does so too)."""
    from gateway.infra.preflight import sqlite_file_problem
    from gateway.migrations import migrate_up as bring_up

    settings = load_settings(config, data_dir=data)
    with translate_database_errors(settings), progress("migrating"):
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if problem := sqlite_file_problem(settings.database):
            raise CommandFailed(": ".join(problem))
        asyncio.run(bring_up(settings.database))
    typer.echo("the database is up to date")


@local(migrate, "status")
def migrate_status(*, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Show the database's revision; exit code 1 when migrations are missing."""
    settings = load_settings(config, data_dir=data)
    with translate_database_errors(settings):
        found = asyncio.run(database_status(settings))
    if as_json:
        print_json({**asdict(found), "up_to_date": found.up_to_date})
    else:
        typer.echo(f"at {found.current or 'no revision'}; this version needs {found.head}")
    if not found.up_to_date:
        raise typer.Exit(ExitCode.FAILED)


@local(migrate, "copy")
def migrate_copy(*, config: Config = None, data: Data = None) -> None:
    """Copy the SQLite file of the data directory to the PostgreSQL database of database_url.

    Stop the gateway first. Everything is copied, or nothing. Afterwards the file is dovecote.db.copied.
    """
    from gateway.infra.data_dir import COPIED_NAME, DataDirBusy, DataDirLock

    settings = load_settings(config, data_dir=data)
    source = settings.data_dir / "dovecote.db"
    _require_files(settings, source)
    try:
        with (
            DataDirLock(settings.data_dir),
            translate_database_errors(settings),
            progress("copying") as shown,
        ):
            rows = asyncio.run(_copy(settings, source, shown))
            _rename(source)
    except DataDirBusy as error:
        raise UsageError(f"{error}: stop it, and repeat") from error
    typer.echo(
        f"{rows} rows copied; the file is now {source.with_name(COPIED_NAME)}. Start with `dovecote serve`"
    )


def _require_files(settings: Settings, source: Path) -> None:
    from sqlalchemy.engine import make_url

    from gateway.infra.data_dir import COPIED_NAME

    if settings.database_url is None:
        raise UsageError("set database_url (DOVECOTE_DATABASE_URL) to the PostgreSQL database to copy to")
    if make_url(settings.database).get_backend_name() == "sqlite":
        raise UsageError(
            "database_url (DOVECOTE_DATABASE_URL) names a SQLite file, and this command copies to "
            "PostgreSQL; `dovecote backup` copies a file"
        )
    if not source.is_file():
        raise CommandFailed(f"there is no database at {source}; name the data directory with --data")
    if (kept := source.with_name(COPIED_NAME)).exists():
        raise UsageError(f"{kept} is of an earlier copy: move it away, and repeat")


async def _copy(settings: Settings, source: Path, shown: Progress) -> int:
    """Give both databases this version's schema, and copy the rows."""
    from sqlalchemy.engine import make_url

    from gateway.config.database_url import sqlite_url
    from gateway.infra.preflight import (
        DatabaseInUse,
        DatabaseRefused,
        DependencyUnavailable,
        claimed_database,
        migrate_database,
    )
    from gateway.migrations import migrate_up
    from gateway.migrations.database_copy import CopyRefused, copy_database

    target, interrupted = settings.database, threading.Event()

    def report(detail: str) -> None:
        shown.detail = detail
        if interrupted.is_set():
            raise CopyRefused("the command was interrupted")

    try:
        async with claimed_database(settings):
            await migrate_up(sqlite_url(source))
            await migrate_database(target, settings.database_url)
            return await asyncio.to_thread(copy_database, source, make_url(target), report)
    except (DatabaseInUse, DatabaseRefused, DependencyUnavailable) as error:
        raise UsageError(str(error)) from error
    except asyncio.CancelledError:  # the thread ends with its next report
        interrupted.set()
        raise
    except CopyRefused as error:
        raise CommandFailed(f"{error}. Nothing was copied, and {source} is unchanged") from error


def _rename(source: Path) -> None:
    from gateway.infra.data_dir import COPIED_NAME

    for suffix in ("", "-wal", "-shm"):
        file = source.with_name(source.name + suffix)
        if file.exists():
            file.rename(source.with_name(COPIED_NAME + suffix))
