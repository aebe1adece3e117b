"""Copy a gateway's SQLite file to a PostgreSQL database without rows: all of it, in one transaction.

Both must have this version's schema. Values are converted by the types of the tables; JSON is copied as the
text that it is, so that a JSON `null` and a missing value stay different.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Insert,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    create_engine,
    func,
    select,
    type_coerce,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlalchemy.types import TypeEngine

from delivery.database.engine import metadata
from delivery.database.postgres import with_failure_detection
from gateway.store import tables

BATCH_ROWS = 200
"""Rows in memory at once; the largest rows have about a megabyte."""

Report = Callable[[str], None]
"""Receives what is copied at the moment: the name of a table, and the number of its rows so far."""


class CopyRefused(Exception):
    """The rows cannot be copied, for a reason that the message names; the target is unchanged."""


def copy_database(source: Path, target: URL, report: Report) -> int:
    """Copy every row of a SQLite file to PostgreSQL, and return their number.

    Raises CopyRefused if the target has rows, or does not accept one; DBAPIError if one of the databases
    cannot be used.
    """
    with ExitStack() as stack:
        read = create_engine(URL.create("sqlite", database=str(source)), poolclass=NullPool)
        write = create_engine(with_failure_detection(target), poolclass=NullPool, hide_parameters=True)
        rows = stack.enter_context(read.connect())
        into = stack.enter_context(write.begin())
        _require_no_rows(into)
        copied = sum(_copy_table(table, rows, into, report) for table in _tables())
        _continue_sequences(into)
    return copied


def _tables() -> Sequence[Table]:
    """Return every table; one that refers to another comes after it."""
    assert tables.accounts.metadata is metadata, "the tables of every package are loaded"
    return metadata.sorted_tables


def _require_no_rows(into: Connection) -> None:
    for table in _tables():
        if into.execute(select(1).select_from(table).limit(1)).first() is not None:
            raise CopyRefused(f"the database has data already (in the table {table.name})")


def _copy_table(table: Table, rows: Connection, into: Connection, report: Report) -> int:
    done, adding = 0, _insert(table)
    found = rows.execution_options(yield_per=BATCH_ROWS).execute(_select(table))
    for batch in found.mappings().partitions():
        _add(table, adding, [dict(row) for row in batch], into)
        done += len(batch)
        report(f"{table.name} {done}")
    return done


def _select(table: Table) -> Select[Any]:
    return select(*(type_coerce(one, _copied_type(one)).label(_key(one)) for one in table.c))


def _insert(table: Table) -> Insert:
    return table.insert().values({one: _value(one) for one in table.c})


def _value(column: Column[Any]) -> ColumnElement[Any]:
    value = bindparam(_key(column), type_=_copied_type(column))
    return cast(value, JSON) if isinstance(column.type, JSON) else value


def _copied_type(column: Column[Any]) -> TypeEngine[Any]:
    return Text() if isinstance(column.type, JSON) else column.type


def _key(column: Column[Any]) -> str:
    """Return the name of a column's value; SQLAlchemy reserves the column's own name."""
    return f"copied_{column.name}"


def _add(table: Table, adding: Insert, batch: Sequence[Mapping[str, Any]], into: Connection) -> None:
    """Insert rows; raises CopyRefused with the first one that the target does not accept."""
    try:
        with into.begin_nested():
            into.execute(adding, batch)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        for row in batch:
            _add_one(table, adding, row, into)
        raise


def _add_one(table: Table, adding: Insert, row: Mapping[str, Any], into: Connection) -> None:
    try:
        with into.begin_nested():
            into.execute(adding, row)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        key = ", ".join(f"{one.name} = {row[_key(one)]}" for one in table.primary_key)
        reason = str(error.orig).strip().splitlines()[0]
        raise CopyRefused(f"the row {key} of the table {table.name} is not accepted: {reason}") from error


def _continue_sequences(into: Connection) -> None:
    """Let the numbers that PostgreSQL gives to new rows begin after those of the copied rows."""
    for table in _tables():
        for column in table.c:
            name = into.scalar(select(func.pg_get_serial_sequence(f'"{table.name}"', column.name)))
            highest = into.scalar(select(func.max(column))) if name else None
            if highest is not None:
                into.execute(select(func.setval(name, highest)))
