"""Conditions of partial indexes: a statement uses such an index if it repeats the condition word for word.

Values are part of the text. With parameters in their place a database cannot know, when it plans a
statement, that the condition holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Index, literal_column, text


def literal_in(column: ColumnElement[Any], values: Iterable[str]) -> ColumnElement[bool]:
    """Return `column IN (values)` with the values in the text."""
    return column.in_([literal_column(f"'{value}'") for value in values])


def partial_index(name: str, *columns: str, where: str) -> Index:
    """Return an index of the rows for which a condition holds."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


def quoted(values: Iterable[str]) -> str:
    """Return values as `literal_in` writes them."""
    return ", ".join(f"'{value}'" for value in values)
