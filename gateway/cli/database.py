"""Database helpers of commands: the schema's revision, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.migrations import Status


NOT_STARTED = (
    "the gateway has not been started on this database yet: start it with `dovecote serve`, "
    "or check data_dir and database_url"
)


async def require_current_schema(settings: Settings) -> None:
    """Raise CommandFailed unless a gateway of this version has been started on the database."""
    status = await database_status(settings)
    if status.current is None:
        raise CommandFailed(NOT_STARTED)
    if not status.up_to_date:
        raise CommandFailed("the database has another version's schema: see `dovecote migrate status`")


async def database_status(settings: Settings) -> Status:
    """Return the database's revision; never creates a missing SQLite file."""
    import asyncio

    from alembic.script import ScriptDirectory
    from sqlalchemy.engine import make_url

    from gateway.migrations import Status, configuration, status

    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and not await asyncio.to_thread(Path(url.database or "").is_file):
        head = ScriptDirectory.from_config(configuration()).get_current_head()
        return Status(current=None, head=head or "")
    return await status(settings.database)


@contextmanager
def translate_database_errors(settings: Settings) -> Iterator[None]:
    """Return an error about the database with its remedy, without the password in its URL."""
    from sqlalchemy.exc import SQLAlchemyError

    from delivery.database.engine import DatabaseUnavailable
    from gateway.infra.preflight import describe_exhaustion, describe_inaccessible
    from gateway.migrations import UnknownRevision

    try:
        yield
    except UnknownRevision as error:
        raise CommandFailed(str(error)) from error
    except (SQLAlchemyError, DatabaseUnavailable, OSError) as error:
        described = describe_exhaustion(settings, error) or describe_inaccessible(settings, error)
        raise CommandFailed(described or _reason(error)) from error


def _reason(error: Exception) -> str:
    from delivery.database.engine import DatabaseUnavailable

    reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    if isinstance(error, DatabaseUnavailable):
        return reason
    return f"the database cannot be used: {reason}; check database_url and data_dir"
