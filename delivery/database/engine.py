"""The database: one engine and its transactions, with the same interface for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, ClassVar, cast

import structlog
from sqlalchemy import MetaData, Table, event, text
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from delivery.database import sqlite
from delivery.database.async_engine import AsyncConnection, AsyncEngine, create_async_engine
from delivery.database.connection_gate import ConnectionGate
from delivery.database.direct_execution import DirectConnection, DirectEngine
from delivery.database.group_commit import BatchAborted, GroupCommit
from delivery.database.postgres import (
    ServerWatch,
    is_silence,
    server_problem,
    time_limit_problem,
    with_failure_detection,
)
from delivery.database.sqlite import is_damaged
from delivery.errors import Remedy
from delivery.exhaustion import EXHAUSTED, exhausted_resource

if TYPE_CHECKING:
    from sqlalchemy.dialects.sqlite import Insert

_log = structlog.get_logger(__name__)

Connection = AsyncConnection
"""The first parameter of store functions, so that callers compose transactions."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""The tables of every package; migrations are compared with this object."""


_POSTGRES_CONNECTIONS = 20
_SQLITE_READERS = 8
_SQLITE_WRITERS = 2
"""Connections beside those of readers: for the writer, and for checks at the start."""
_READ_ONLY_TRANSACTION = "25006"
_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
"""A transaction that PostgreSQL ended for another one: serialization failure, deadlock, lock timeout."""
_FOREIGN_KEY_VIOLATION = "23503"
READ_ONLY = "the database is read-only; an operator must make it writable, or name the server that is"
DAMAGED = "the database is damaged; an operator must restore a backup of it (see `dovecote doctor`)"
_CORRUPTED = frozenset({"XX001", "XX002"})
"""PostgreSQL's data_corrupted and index_corrupted."""
_IS_READ_ONLY = text("SELECT current_setting('transaction_read_only') = 'on'")
_CONNECTION_SECONDS = {"postgresql": 5.0, "sqlite": 30.0}
"""Seconds to wait for a free connection. Reads of SQLite use the processor, so they wait for each other."""


class DatabaseUnavailable(RuntimeError):
    """The database does not answer; nothing was written."""

    remedy: ClassVar[Remedy] = "retry"
    is_outage: ClassVar[bool] = True


class TransactionConflict(DatabaseUnavailable):
    """Another transaction has locked what this one needs; nothing was written. A repetition may succeed."""

    is_outage = False


class DatabaseReadOnly(DatabaseUnavailable):
    """The database refuses to write: a standby after a fail-over, or a file that this user may only read."""

    def __init__(self) -> None:
        super().__init__(READ_ONLY)


class DatabaseDamaged(DatabaseUnavailable):
    """The file of the database, or an index of it, cannot be read as what was written."""

    def __init__(self) -> None:
        super().__init__(DAMAGED)


class RowDeleted(LookupError):
    """Another transaction deleted the row that this one read before and changes now."""


def is_dangling_reference(error: BaseException) -> bool:
    """Return whether a transaction failed because a row that it refers to does not exist any more."""
    if isinstance(error, RowDeleted):
        return True
    if not isinstance(error, IntegrityError):
        return False
    return (
        getattr(error.orig, "sqlstate", None) == _FOREIGN_KEY_VIOLATION
        or getattr(error.orig, "sqlite_errorname", None) == "SQLITE_CONSTRAINT_FOREIGNKEY"
    )


@contextmanager
def ignore_deletions() -> Iterator[None]:
    """End a block early if it writes about a row that does not exist any more: nothing was written."""
    try:
        yield
    except (RowDeleted, IntegrityError) as error:
        if not is_dangling_reference(error):
            raise


def insert_on_conflict(table: Table, dialect: str) -> Insert:
    """Return an INSERT with `on_conflict_do_*`, which each dialect defines itself.

    Only the module of the dialect in use is imported.
    """
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(table)
    from sqlalchemy.dialects.postgresql import insert as postgres_insert

    # Both classes have the same methods with the same meaning, but no common base.
    return cast("Insert", postgres_insert(table))


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise DatabaseUnavailable in place of the errors of a database that does not answer, or is damaged."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseUnavailable("all database connections are in use") from error
    except BatchAborted as error:
        raise DatabaseUnavailable(_exhaustion(error) or "the database aborted the transaction") from error
    except DBAPIError as error:
        if _is_read_only(error.orig):
            raise DatabaseReadOnly from error
        if is_damaged(error) or getattr(error.orig, "sqlstate", None) in _CORRUPTED:
            raise DatabaseDamaged from error
        if getattr(error.orig, "sqlstate", None) in _CONFLICTS:
            raise TransactionConflict("another transaction changes the same rows") from error
        exhausted = _exhaustion(error)
        if exhausted or error.connection_invalidated or error.__class__.__name__ == "OperationalError":
            why = exhausted or time_limit_problem(error.orig)
            why = why or f"the database does not answer: {server_problem(error.orig)}"
            raise DatabaseUnavailable(why) from error
        raise


def _is_read_only(error: BaseException | None) -> bool:
    """Return whether PostgreSQL refused to write, as a standby does after a fail-over, or SQLite did."""
    if getattr(error, "sqlstate", None) == _READ_ONLY_TRANSACTION:
        return True
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_READONLY


def _discard_unusable(context: ExceptionContext) -> None:
    """Close a connection that fails its check before use, for whatever reason, or whose server only reads.

    A new connection may reach a server that can write.
    """
    error = context.original_exception
    if context.is_pre_ping and not context.is_disconnect:
        _log.warning("database.connection_discarded", because=str(error))
    if context.is_pre_ping or _is_read_only(error):
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False


def _exhaustion(error: BaseException) -> str:
    """Return what the database could not get from its machine, or an empty text."""
    resource = exhausted_resource(error)
    return f"the database cannot write: {EXHAUSTED[resource]}" if resource else ""


class Database:
    """Opens transactions, fairly among accounts; on SQLite one writer at a time, urgent ones first."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.server_watch = ServerWatch()
        self._connections = ConnectionGate(_SQLITE_READERS if self.is_sqlite else _POSTGRES_CONNECTIONS)
        self.is_damaged = False
        """Whether a damaged SQLite file was met: what lies elsewhere in it can still be read and written."""
        self._engine = self._open()
        self._group_commit = (
            GroupCommit(self._open_connection, self._translate_errors) if self.is_sqlite else None
        )
        self._idle: list[DirectConnection] = []

    def _open(self) -> AsyncEngine:
        if not self.is_sqlite:
            postgres = create_async_engine(
                with_failure_detection(self.url),
                pool_size=_POSTGRES_CONNECTIONS // 2,
                max_overflow=_POSTGRES_CONNECTIONS // 2,
                pool_timeout=_CONNECTION_SECONDS["postgresql"],
                pool_pre_ping=True,
                hide_parameters=True,  # a logged error must not contain messages of users
            )
            event.listen(postgres.sync_engine, "handle_error", _discard_unusable)
            event.listen(
                postgres.sync_engine, "connect", lambda _adapted, _record: self._connections.restore()
            )
            self.server_watch.attach(postgres.sync_engine)
            return postgres
        engine = create_async_engine(
            self.url,
            pool_size=_SQLITE_READERS + _SQLITE_WRITERS,
            max_overflow=0,
            hide_parameters=True,
            connect_args={"async_creator_fn": lambda path, **_: sqlite.open_connection(path)},
        )
        event.listen(engine.sync_engine, "connect", sqlite.prepare)
        return DirectEngine(engine.sync_engine)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            with _translate_errors():
                yield
        except DatabaseDamaged as error:
            if not self.is_damaged:
                _log.error(
                    "database.damaged", error=str(error), reason=str(error.__cause__).partition("\n")[0]
                )
            self.is_damaged = self.is_sqlite
            raise

    def begin(self, *, urgent: bool = False) -> AbstractAsyncContextManager[Connection]:
        """Open a writing transaction: committed at the end of the block, rolled back by an exception.

        `urgent`: the recorded action has already happened, and a crash before the commit would repeat it.
        """
        return self._begin() if self._group_commit is None else self._group_commit.begin(urgent=urgent)

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[Connection]:
        async with self.read() as connection, connection.begin():
            yield connection

    def read(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection for reading; anything written on it is rolled back.

        The accounts share the connections fairly.
        """
        return self._read_file() if self.is_sqlite else self._read_server()

    @asynccontextmanager
    async def _read_file(self) -> AsyncIterator[Connection]:
        leave = await self._wait_for_place()
        try:
            with self._translate_errors():
                async with self._borrow() as connection:
                    yield connection
        finally:
            leave()

    @asynccontextmanager
    async def _read_server(self) -> AsyncIterator[Connection]:
        with self._translate_errors():
            async with AsyncExitStack() as held:
                yield await self._open_server(held)

    async def _open_server(self, held: AsyncExitStack) -> Connection:
        """Open a connection; if the server refuses one more, wait for one of those that are open."""
        is_limited = False
        while True:
            held.callback(await self._wait_for_place())
            try:
                connection = await held.enter_async_context(self._engine.connect())
            except OperationalError as error:
                await held.aclose()
                is_limited = not is_silence(error.orig) and self._connections.lower()
                if not is_limited:
                    self.server_watch.note_absence(error.orig)
                    raise
            else:
                if is_limited:
                    self.server_watch.note_limit()
                return connection

    async def _wait_for_place(self) -> Callable[[], None]:
        try:
            return await self._connections.enter(timeout=_CONNECTION_SECONDS[self.url.get_backend_name()])
        except TimeoutError as error:
            raise DatabaseUnavailable("all database connections are in use") from error

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[DirectConnection]:
        """Use an open connection of SQLite again: the pool's own steps take longer than a statement."""
        connection = self._idle.pop() if self._idle else await self._open_connection()
        connection.prepare()
        try:
            yield connection
            if connection.in_transaction():
                await connection.rollback()
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)

    async def _open_connection(self) -> DirectConnection:
        connection = await self._engine.connect()
        assert isinstance(connection, DirectConnection)
        return connection

    async def is_read_only(self) -> bool:
        """Return whether PostgreSQL refuses to write; a SQLite file is writable if its directory is."""
        if self.is_sqlite:
            return False
        async with self.read() as connection:
            is_read_only = bool(await connection.scalar(_IS_READ_ONLY))
            if is_read_only:  # a new connection may reach a server that can write
                await connection.invalidate()
            return is_read_only

    async def close(self) -> None:
        """Close every connection."""
        if self._group_commit is not None:
            await self._group_commit.close()
        for connection in self._idle:
            await connection.close()
        await self._engine.dispose()
