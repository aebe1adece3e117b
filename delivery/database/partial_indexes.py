"""Conditions of partial indexes: a statement uses such an index if it repeats the condition word for word.

Values are part of the text. With parameters in their place a database cannot know, when it plans a
statement, that the condition holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Index, MetaData, Table, literal_column, text

WHERE = "where"
"""The key of the condition in the `info` of an index."""


def literal_in(column: ColumnElement[Any], values: Iterable[str]) -> ColumnElement[bool]:
    """Return `column IN (values)` with the values in the text."""
    return column.in_([literal_column(f"'{value}'") for value in values])


def partial_index(name: str, *columns: str, where: str) -> Index:
    """Return an index of the rows for which a condition holds.

    Only SQLite's form of it is set, because the other would load the dialect of PostgreSQL in every process;
    `set_postgresql_conditions` adds it before a revision is written.
    """
    return Index(name, *columns, sqlite_where=text(where), info={WHERE: where})


def set_postgresql_conditions(metadata: MetaData) -> None:
    """Add PostgreSQL's form of the condition to each partial index."""
    for table in metadata.tables.values():
        for index in table.indexes:
            if WHERE in index.info:
                index.dialect_options["postgresql"]["where"] = text(index.info[WHERE])


def quoted(values: Iterable[str]) -> str:
    """Return values as `literal_in` writes them."""
    return ", ".join(f"'{value}'" for value in values)


def has_others(table: Table, key: str, states: Iterable[str]) -> ColumnElement[bool]:
    """Return, for RETURNING, whether another row with the same `key` has one of these states.

    It is text, because SQLAlchemy leaves the names of tables out of what SQLite returns.
    """
    name = table.name
    return literal_column(
        f"EXISTS (SELECT 1 FROM {name} AS other WHERE other.{key} = {name}.{key}"  # noqa: S608 - own names
        f" AND other.id <> {name}.id AND other.state IN ({quoted(states)}))"
    )
