"""Execute statements that are module constants directly on SQLite's connection.

SQLite's statements run on the event loop and take microseconds; SQLAlchemy's way to them (a greenlet, a cache
key, a context and a cursor for each) takes ten times as long. A statement object that is executed again is
compiled once, by SQLAlchemy, and its text and parameters then go to the driver. Everything else takes the
usual way: statements that are built for one call, lists of values (`IN`), defaults of columns, values that
are missing or computed, and everything while somebody listens to SQLAlchemy's events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Executable, SelectBase, UpdateBase
from sqlalchemy.engine import Dialect, IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.compiler import SQLCompiler

from delivery.database.sqlite import InlineSqliteConnection

Convert = Callable[[Any], Any]
Parameters = Mapping[str, Any]


class DirectResult(IteratorResult[Any]):
    """Rows that were read already, with the number of rows that the statement has changed."""

    def __init__(self, metadata: SimpleResultMetaData, rows: Iterable[Sequence[Any]], rowcount: int) -> None:
        super().__init__(metadata, iter(rows))
        self.rowcount = rowcount


def as_database_error(error: sqlite3.Error, statement: str, dialect: Dialect) -> Exception:
    """Return SQLAlchemy's error for an error of the driver."""
    found = DBAPIError.instance(statement, None, error, sqlite3.Error, hide_parameters=True, dialect=dialect)
    return cast("Exception", found)


class _Plan:
    """A compiled statement: its text, and how values are converted on the way in and out."""

    def __init__(
        self,
        compiled: SQLCompiler,
        columns: Sequence[ColumnElement[Any]],
        dialect: Dialect,
        given: frozenset[str],
    ) -> None:
        self.text = str(compiled)
        self.has_rows = bool(columns)
        self._dialect = dialect
        self._compiled = compiled
        self._binds = [self._bind_of(name, given) for name in compiled.positiontup or ()]
        converters = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
        self._results = [(place, convert) for place, convert in enumerate(converters) if convert is not None]
        self._metadata = SimpleResultMetaData(())

    def _bind_of(self, name: str, given: frozenset[str]) -> tuple[str | None, Any, Convert | None]:
        """Return the key of a parameter, or None with the value that the statement has itself."""
        bind = self._compiled.binds[name]
        convert = bind.type.dialect_impl(self._dialect).bind_processor(self._dialect)
        if bind.key in given:
            return bind.key, None, convert
        value = bind.effective_value
        return None, value if convert is None else convert(value), None

    def execute(self, database: sqlite3.Connection, parameters: Parameters) -> DirectResult:
        """Execute the statement once and read all of its rows."""
        cursor = self._run(database.execute, self._bind(parameters))
        rows = cursor.fetchall() if self.has_rows else ()
        if self.has_rows and not self._metadata.keys:
            self._metadata = SimpleResultMetaData([entry[0] for entry in cursor.description])
        return DirectResult(self._metadata, self._read(rows) if self._results else rows, cursor.rowcount)

    def execute_many(self, database: sqlite3.Connection, parameters: Sequence[Parameters]) -> DirectResult:
        """Execute a statement without rows once for each set of parameters."""
        cursor = self._run(database.executemany, [self._bind(one) for one in parameters])
        return DirectResult(self._metadata, (), cursor.rowcount)

    def _run(self, execute: Callable[[str, Any], sqlite3.Cursor], values: Any) -> sqlite3.Cursor:
        try:
            return execute(self.text, values)
        except sqlite3.Error as error:
            raise as_database_error(error, self.text, self._dialect) from error

    def _bind(self, parameters: Parameters) -> list[Any]:
        return [
            value if key is None else parameters[key] if convert is None else convert(parameters[key])
            for key, value, convert in self._binds
        ]

    def _read(self, rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
        for row in rows:
            read = list(row)
            for place, convert in self._results:
                read[place] = convert(read[place])
            yield read


class _Plans:
    """The plans of statements, each made when its statement is executed for the second time."""

    def __init__(self) -> None:
        self._plans: WeakKeyDictionary[Executable, dict[frozenset[str], _Plan | None]] = WeakKeyDictionary()

    def get(self, statement: Executable, keys: Iterable[str], dialect: Dialect) -> _Plan | None:
        """Return the plan of a statement with these parameters; None if it takes the usual way."""
        if not isinstance(statement, SelectBase | UpdateBase):
            return None
        plans = self._plans.get(statement)
        if plans is None:
            self._plans[statement] = {}
            return None
        given = frozenset(keys)
        if given not in plans:
            plans[given] = _make_plan(statement, given, dialect)
        return plans[given]


_PLANS = _Plans()


def _make_plan(statement: SelectBase | UpdateBase, given: frozenset[str], dialect: Dialect) -> _Plan | None:
    compiled = statement.compile(dialect=dialect, column_keys=sorted(given) or None)
    if compiled.post_compile_params or compiled.insert_prefetch or compiled.update_prefetch:
        return None
    if any(bind.callable or (bind.required and bind.key not in given) for bind in compiled.binds.values()):
        return None
    return _Plan(compiled, list(statement.exported_columns), dialect, given)


class DirectConnection(AsyncConnection):
    """A connection to SQLite whose constant statements take the short way."""

    async def execute(
        self, statement: Executable, parameters: Any = None, *, execution_options: Any = None
    ) -> Any:
        """Execute a statement; see `AsyncConnection.execute`.

        The result has what callers use of a CursorResult: its rows and `rowcount`.
        """
        plan, database = self._plan(statement, parameters), self._idle_database()
        if plan is None or database is None or execution_options:
            return await super().execute(statement, parameters, execution_options=execution_options)
        if isinstance(parameters, list):
            return plan.execute_many(database, parameters)
        return plan.execute(database, parameters or {})

    def _plan(self, statement: Executable, parameters: Any) -> _Plan | None:
        many = isinstance(parameters, list)
        if self._is_observed() or (many and not parameters):
            return None
        first = parameters[0] if many else parameters or {}
        plan = _PLANS.get(statement, first, self.dialect)
        return None if plan is not None and many and plan.has_rows else plan

    def _is_observed(self) -> bool:
        """Return whether somebody listens to the statements of SQLAlchemy."""
        return bool(self.sync_connection and self.sync_connection.dispatch.before_cursor_execute)

    def _idle_database(self) -> sqlite3.Connection | None:
        """Return the driver's connection, unless a call that may block is running on it."""
        return self.driver.idle_database

    @property
    def driver(self) -> InlineSqliteConnection:
        """The driver's connection."""
        assert self.sync_connection is not None
        driver = self.sync_connection.connection.driver_connection
        assert isinstance(driver, InlineSqliteConnection)
        return driver


class DirectEngine(AsyncEngine):
    """An engine of direct connections."""

    _connection_cls = DirectConnection
