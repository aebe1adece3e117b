"""SQLite connections: only calls that may wait for the disk or another process run in a thread.

Waiting for the write lock, committing, rolling back and opening can block. All other statements read and
write pages in memory and take microseconds, less than a round trip to a thread. So they run on the event
loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

import aiosqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from delivery.exhaustion import error_chain

BEGIN = "BEGIN IMMEDIATE"
"""Acquires the write lock; a busy file is waited for in the thread."""

_BUSY_MS = 10_000
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_MS}", "foreign_keys=ON")
_ROWS_AT_ONCE = 64
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class InlineSqliteConnection(aiosqlite.Connection):
    """A connection that runs non-blocking calls inline and blocking calls in its thread."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=_ROWS_AT_ONCE)
        self._calls: list[Callable[..., Any]] = []
        """The calls that the thread runs; a call continues after its caller was cancelled."""
        self._waits = True
        """Whether SQLite waits for a lock that another connection holds, as `prepare` sets it."""

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # aiosqlite passes every call to its thread here and nowhere else.
        if not (self._calls or self._may_block(fn, args)):
            return fn(*args, **kwargs)
        self._calls.append(fn)
        return await super()._execute(self._call, fn, *args, **kwargs)  # type: ignore[no-untyped-call]

    @property
    def idle_database(self) -> sqlite3.Connection | None:
        """The connection of the standard library; None while a call runs in the thread."""
        return None if self._calls else self._conn

    async def begin(self) -> None:
        """Acquire the write lock: at once if it is free, else in the thread.

        A connection that has begun a transaction this way does not wait for locks on the event loop again.
        """
        if not (self._calls or self._begin_if_free()):
            self.execute_inline(f"PRAGMA busy_timeout={_BUSY_MS}")
            self._waits = True
            await (await self.execute(BEGIN)).close()

    def execute_inline(self, statement: str) -> None:
        """Run a statement that cannot block, and has no rows, on the event loop."""
        self._conn.execute(statement)

    def end(self, ended: Callable[[Exception | None], None], *, commit: bool) -> None:
        """Commit or roll back in the thread, and then call `ended` on the loop with the error, if any.

        It needs no task, so it cannot be cancelled. After an error, close the connection.
        """
        self._calls.append(self.end)
        loop = asyncio.get_running_loop()
        self._tx.put_nowait((None, partial(self._end_in_thread, self._conn, loop, ended, commit=commit)))

    def _end_in_thread(
        self,
        database: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[Exception | None], None],
        *,
        commit: bool,
    ) -> None:
        failure: Exception | None = None
        try:
            (database.commit if commit else database.rollback)()
        except Exception as error:  # noqa: BLE001 - every writer of the transaction gets it
            failure = error
            with suppress(Exception):  # who gets the error closes the connection, which rolls back as well
                database.rollback()
        self._calls.pop()
        loop.call_soon_threadsafe(ended, failure)

    def _begin_if_free(self) -> bool:
        database = self._conn
        if self._waits:
            database.execute("PRAGMA busy_timeout=0")
            self._waits = False
        try:
            database.execute(BEGIN)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

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
    """Return an awaitable connection, as `aiosqlite.connect` does."""

    def connect() -> sqlite3.Connection:
        # SQLite serializes calls itself; a transaction's statements never run during its commit.
        return sqlite3.connect(path, check_same_thread=False)

    connection = InlineSqliteConnection(connect)
    connection._thread.daemon = True  # noqa: SLF001 - SQLAlchemy does the same for its own connections
    return connection


def is_damaged(error: BaseException) -> bool:
    """Return whether an error means that a SQLite file is damaged, or is no SQLite file."""
    codes = (getattr(one, "sqlite_errorcode", 0) & 0xFF for one in error_chain(error))
    return any(code in _DAMAGED for code in codes)


def find_damage(path: str, *, in_use: bool = True) -> str:
    """Check every page of a SQLite file; return the first damage, or "". Raises sqlite3.OperationalError.

    A file that is not `in_use` is read without making files beside it.
    """
    mode = "mode=ro" if in_use else "immutable=1"
    with closing(sqlite3.connect(f"file:{quote(path)}?{mode}", uri=True)) as connection:
        try:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            return str(error)
    return "" if found == "ok" else found.splitlines()[-1]


def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Set the pragmas of a new connection: durability, locking and foreign keys."""
    connection.isolation_level = None  # SQLAlchemy begins transactions itself
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
