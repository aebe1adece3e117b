"""Execute statements that are module constants directly on SQLite's connection.

SQLite's statements run on the event loop and take microseconds; SQLAlchemy's way to them (a greenlet, a cache
key, a context and a cursor for each) takes ten times as long. A statement object that is executed again is
compiled once, by SQLAlchemy, and its text and parameters then go to the driver. Everything else takes the
usual way: statements that are built for one call, lists of values (`IN`), defaults of columns, values that
are missing or computed, and everything while a listener of SQLAlchemy's events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from weakref import ref

from sqlalchemy import BindParameter, ColumnElement, Executable, SelectBase, UpdateBase, literal_column
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import replacement_traverse

from delivery.database.async_engine import AsyncConnection, AsyncEngine
from delivery.database.direct_result import DirectResult
from delivery.database.sqlite import InlineSqliteConnection

Convert = Callable[[Any], Any]
Parameters = Mapping[str, Any]


def as_database_error(error: sqlite3.Error, statement: str, dialect: Dialect) -> Exception:
    """Return SQLAlchemy's error for an error of the driver."""
    found = DBAPIError.instance(statement, None, error, sqlite3.Error, hide_parameters=True, dialect=dialect)
    return cast("Exception", found)


class _Plan:
    """A compiled statement: its text, and how values are converted on the way in and out.

    It does not keep SQLAlchemy's compiled form, which takes some 20 kB for each statement.
    """

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
        self._binds = [self._prepare(compiled.binds[name], given) for name in compiled.positiontup or ()]
        converters = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
        self._results = [(place, convert) for place, convert in enumerate(converters) if convert is not None]
        self._metadata: SimpleResultMetaData | None = None

    def _prepare(
        self, bind: BindParameter[Any], given: frozenset[str]
    ) -> tuple[str | None, Any, Convert | None]:
        """Return the key of a parameter, or None with the value that the statement has itself."""
        convert = bind.type.dialect_impl(self._dialect).bind_processor(self._dialect)
        if bind.key in given:
            return bind.key, None, convert
        value = bind.effective_value
        return None, value if convert is None else convert(value), None

    def execute(self, database: sqlite3.Connection, parameters: Parameters) -> DirectResult:
        """Execute the statement once and read all of its rows."""
        try:
            cursor = database.execute(self.text, self._bind(parameters))
            rows = cursor.fetchall() if self.has_rows else ()
        except sqlite3.Error as error:
            raise as_database_error(error, self.text, self._dialect) from error
        if self._metadata is None:
            self._metadata = SimpleResultMetaData([entry[0] for entry in cursor.description or ()])
        return DirectResult(self._metadata, self._read(rows) if self._results else rows, cursor.rowcount)

    def execute_many(self, database: sqlite3.Connection, parameters: Sequence[Parameters]) -> DirectResult:
        """Execute a statement without rows once for each set of parameters."""
        try:
            cursor = database.executemany(self.text, [self._bind(one) for one in parameters])
        except sqlite3.Error as error:
            raise as_database_error(error, self.text, self._dialect) from error
        return DirectResult(_NO_COLUMNS, (), cursor.rowcount)

    def _bind(self, parameters: Parameters) -> list[Any]:
        return [
            value if key is None else parameters[key] if convert is None else convert(parameters[key])
            for key, value, convert in self._binds
        ]

    def _read(self, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        return [self._read_one(row) for row in rows]

    def _read_one(self, row: Sequence[Any]) -> Sequence[Any]:
        read = list(row)
        for place, convert in self._results:
            read[place] = convert(read[place])
        return tuple(read)


class _Plans:
    """The plans of statements, each made when its statement is executed for the second time.

    Statements are found by their identity, because hashing them takes longer than executing them. An entry
    goes with its statement.
    """

    def __init__(self) -> None:
        self._plans: dict[int, dict[tuple[str, ...], _Plan | None]] = {}
        self._known: dict[int, ref[Executable]] = {}

    def get(self, statement: Executable, keys: Iterable[str], connection: AsyncConnection) -> _Plan | None:
        """Return the plan of a statement with these parameters; None if it takes the usual way."""
        plans = self._plans.get(id(statement))
        if plans is None:
            self._remember(statement)
            return None
        given = tuple(keys)
        if given not in plans:
            plans[given] = _make_plan(statement, frozenset(given), connection.dialect)
        return plans[given]

    def _remember(self, statement: Executable) -> None:
        key = id(statement)
        self._plans[key] = {}
        self._known[key] = ref(statement, partial(self._forget, key))

    def _forget(self, key: int, _reference: ref[Executable]) -> None:
        del self._plans[key], self._known[key]


_PLANS = _Plans()
_NO_COLUMNS = SimpleResultMetaData(())


def _make_plan(statement: Executable, given: frozenset[str], dialect: Dialect) -> _Plan | None:
    if not isinstance(statement, SelectBase | UpdateBase):
        return None
    return _compile_plan(statement, given, dialect)


def _compile_plan(
    statement: SelectBase | UpdateBase, given: frozenset[str], dialect: Dialect
) -> _Plan | None:
    constants = partial(_render_constant, given=given, dialect=dialect)
    constant = cast("SelectBase | UpdateBase", replacement_traverse(statement, {}, constants))
    compiled = constant.compile(dialect=dialect, column_keys=sorted(given) or None)
    if compiled.post_compile_params or compiled.insert_prefetch or compiled.update_prefetch:
        return None
    if any(bind.callable or (bind.required and bind.key not in given) for bind in compiled.binds.values()):
        return None
    return _Plan(compiled, list(constant.exported_columns), dialect, given)


def _render_constant(
    element: Any, *, given: frozenset[str], dialect: Dialect, **_options: Any
) -> ColumnElement[Any] | None:
    """Return a constant text or number of a statement as a literal; None leaves an element as it is.

    SQLite prepares a statement again for each execution if the value of a parameter decides whether a partial
    index may be used.
    """
    if not isinstance(element, BindParameter) or element.key in given or element.expanding:
        return None
    if element.required or element.callable or type(element.value) not in (str, int):
        return None
    render = element.type.dialect_impl(dialect).literal_processor(dialect)
    return None if render is None else literal_column(render(element.value), type_=element.type)


class DirectConnection(AsyncConnection):
    """A connection to SQLite whose constant statements take the short way."""

    _direct_driver: InlineSqliteConnection | None = None
    _is_observed = False

    def prepare(self) -> None:
        """Find out whether a listener gets statements; call it before each use of the connection."""
        assert self.sync_connection is not None
        self._is_observed = bool(self.sync_connection.dispatch.before_cursor_execute)

    async def execute(
        self, statement: Executable, parameters: Any = None, *, execution_options: Any = None
    ) -> Any:
        """Execute a statement; see `AsyncConnection.execute`.

        The result has what callers use of a CursorResult: its rows and `rowcount`.
        """
        # The driver is busy while a call that may block is running on it.
        driver = self._direct_driver or self.driver
        plan, database = self._plan(statement, parameters), driver.idle_database
        if plan is None or database is None or execution_options:
            return await super().execute(statement, parameters, execution_options=execution_options)
        if isinstance(parameters, list):
            return plan.execute_many(database, parameters)
        return plan.execute(database, parameters or {})

    def _plan(self, statement: Executable, parameters: Any) -> _Plan | None:
        many = isinstance(parameters, list)
        if self._is_observed or (many and not parameters):
            return None
        first = parameters[0] if many else parameters or {}
        plan = _PLANS.get(statement, first, self)
        return None if plan is not None and many and plan.has_rows else plan

    @property
    def driver(self) -> InlineSqliteConnection:
        """The driver's connection."""
        if self._direct_driver is None:
            assert self.sync_connection is not None
            driver = self.sync_connection.connection.driver_connection
            assert isinstance(driver, InlineSqliteConnection)
            self._direct_driver = driver
        return self._direct_driver


class DirectEngine(AsyncEngine):
    """An engine of direct connections."""

    _connection_cls = DirectConnection
