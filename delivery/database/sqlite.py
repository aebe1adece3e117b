"""SQLite's connections: what may wait for the disk or for another process runs in a thread of its own.

Taking the write lock, committing, rolling back and opening wait; everything else reads and writes pages in
memory and takes microseconds, less than handing it to a thread and back while the interpreter is busy. So
those statements run where they are called.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import aiosqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

BEGIN = "BEGIN IMMEDIATE"
"""Takes the write lock; a busy file is waited for in the thread."""

_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000", "foreign_keys=ON")
_ROWS_AT_ONCE = 64


class InlineSqliteConnection(aiosqlite.Connection):
    """A connection that runs at once what does not wait."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=_ROWS_AT_ONCE)
        self._calls: list[Callable[..., Any]] = []
        """What the thread is at; it may go on with that after whoever asked for it was cancelled."""

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # aiosqlite has no other place where a call goes to its thread.
        if not (self._calls or self._may_block(fn, args)):
            return fn(*args, **kwargs)
        self._calls.append(fn)
        return await super()._execute(self._call, fn, *args, **kwargs)  # type: ignore[no-untyped-call]

    def _call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            self._calls.pop()

    def _may_block(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        database = self._conn
        if fn in (database.commit, database.rollback):
            return database.in_transaction
        return fn == database.close or args[:1] == (BEGIN,)


def open_connection(path: str) -> InlineSqliteConnection:
    """Return a connection to be awaited, as `aiosqlite.connect` does."""

    def connect() -> sqlite3.Connection:
        # Serialised by SQLite itself; a transaction's statements never run beside its commit.
        return sqlite3.connect(path, check_same_thread=False)

    connection = InlineSqliteConnection(connect)
    connection._thread.daemon = True  # noqa: SLF001 - as SQLAlchemy does it for connections it makes
    return connection


def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Make a new connection safe and durable."""
    connection.isolation_level = None  # SQLAlchemy begins transactions itself
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
