"""Databases that are migrated once in a test run, and copied by each test."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import session
from gateway.migrations import migrate_up
from postgres import PostgresCluster

TEMPLATE = "migrated"


async def migrated_sqlite(target: Path) -> str:
    """Make a migrated database in a file, unless there is one; returns its URL."""
    await asyncio.to_thread(_copy if session.running() else _migrate, target)
    return f"sqlite+aiosqlite:///{target}"


async def migrated_data_directory(data: Path) -> None:
    """Make a gateway's data directory with a migrated database, as after a first start."""
    await asyncio.to_thread(data.mkdir, mode=0o700)
    await migrated_sqlite(data / "dovecote.db")


def _copy(target: Path) -> None:
    if not target.exists():
        shutil.copyfile(_sqlite_template(), target)


def _migrate(target: Path) -> None:
    """Make the database itself: a benchmark has no session, whose template could be copied."""
    if not target.exists():
        asyncio.run(migrate_up(f"sqlite+aiosqlite:///{target}"))


def _sqlite_template() -> Path:
    """Return the file to copy, perhaps after waiting for another worker that makes it."""
    with session.making("migrated.db") as place:
        if place is not None:
            place.unlink(missing_ok=True)
            _migrate(place)
    return session.directory() / "migrated.db"


def migrated_template(cluster: PostgresCluster) -> str:
    """Return the name of the database to copy."""
    with session.making("migrated.postgresql") as place:
        if place is not None:
            with ThreadPoolExecutor(1) as thread:  # the tests' thread has an event loop of its own
                thread.submit(asyncio.run, migrate_up(cluster.create_database(name=TEMPLATE))).result()
    return TEMPLATE
