"""The rows of a statement that was executed directly, with the methods of SQLAlchemy's `Result` in use.

`Result` reads rows from a cursor, in steps, through filters. Here the rows are read already, so a method only
makes `Row` objects of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Row, RowMapping
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import MultipleResultsFound, NoResultFound

Values = Sequence[Any]


class _Rows:
    """Rows in order; `make` makes of the values of a row what the methods return."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[Values]) -> None:
        self._rows = rows

    def make(self, values: Values) -> Any:
        """Return what stands for a row."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Return the rows."""
        return iter(self.all())

    def all(self) -> list[Any]:
        """Return all rows."""
        return [self.make(values) for values in self._rows]

    def first(self) -> Any:
        """Return the first row, or None."""
        return self.make(self._rows[0]) if self._rows else None

    def one_or_none(self) -> Any:
        """Return the only row, or None if there is none; raises MultipleResultsFound."""
        if len(self._rows) > 1:
            raise MultipleResultsFound("one row was expected, and there are more")
        return self.first()

    def one(self) -> Any:
        """Return the only row; raises NoResultFound, MultipleResultsFound."""
        if not self._rows:
            raise NoResultFound("one row was expected, and there is none")
        return self.one_or_none()


class DirectScalars(_Rows):
    """The first column of the rows."""

    __slots__ = ()

    def make(self, values: Values) -> Any:
        """Return the first column."""
        return values[0]


class DirectMappings(_Rows):
    """The rows as mappings from the names of columns."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: SimpleResultMetaData, rows: Sequence[Values]) -> None:
        self._rows, self._metadata = rows, metadata

    def make(self, values: Values) -> RowMapping:
        """Return a mapping."""
        metadata = self._metadata
        return RowMapping(metadata, None, metadata._key_to_index, values)  # noqa: SLF001 - as Result makes it


class DirectResult(_Rows):
    """The rows of a statement, and the number of rows that it has changed."""

    __slots__ = ("_metadata", "rowcount")

    def __init__(self, metadata: SimpleResultMetaData, rows: Sequence[Values], rowcount: int) -> None:
        self._rows, self._metadata, self.rowcount = rows, metadata, rowcount

    def make(self, values: Values) -> Row[Any]:
        """Return a row."""
        metadata = self._metadata
        return Row(metadata, None, metadata._key_to_index, values)  # noqa: SLF001 - as Result makes it

    def mappings(self) -> DirectMappings:
        """Return the rows as mappings."""
        return DirectMappings(self._metadata, self._rows)

    def scalars(self) -> DirectScalars:
        """Return the first column of the rows."""
        return DirectScalars(self._rows)

    def scalar(self) -> Any:
        """Return the first column of the first row, or None."""
        return self.scalars().first()

    def scalar_one(self) -> Any:
        """Return the first column of the only row; raises NoResultFound, MultipleResultsFound."""
        return self.scalars().one()

    def scalar_one_or_none(self) -> Any:
        """Return the first column of the only row, or None; raises MultipleResultsFound."""
        return self.scalars().one_or_none()
