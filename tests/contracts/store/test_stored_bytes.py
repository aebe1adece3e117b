"""What an account stores in the database is counted in bytes, in every table that it can grow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Boolean, Column, LargeBinary, String, Table, Text

from delivery.database.engine import Database, metadata
from delivery.database.tables import UtcDateTime
from gateway.store.accounts.stored_bytes import COUNTED, NOT_COUNTED, ROW_BYTES, stored_bytes
from statement_recorder import recorded_statements

TEXT = "\N{BIRD} é"
"""Three characters, and seven bytes of UTF-8."""

BYTES = {Text: 7, JSON: len('"one"'), LargeBinary: 3}


def test_every_table_is_counted_or_exempted() -> None:
    """A new table is listed in one of the two tables of the module, and one without counting has a reason."""
    listed = [*(table.name for table in COUNTED), *NOT_COUNTED]
    assert sorted(listed) == sorted(metadata.tables)
    assert all(len(reason) > 10 for reason in NOT_COUNTED.values())
    accountless = [table.name for table in COUNTED if "account" not in table.c]
    assert not accountless


async def test_each_text_of_each_counted_table_is_counted_in_bytes(database: Database) -> None:
    """One statement adds the bytes of all texts and so much for each row; other accounts have none of it."""
    expected = 0
    async with database.begin() as connection:
        for table in metadata.sorted_tables:
            if table in COUNTED or table.name == "accounts":
                await connection.execute(table.insert().values(row_of(table)))
            if table in COUNTED:
                expected += ROW_BYTES + sum(map(bytes_of, table.c))
    async with database.read() as connection:
        with recorded_statements() as recorder:
            assert await stored_bytes(connection, "one") == expected
            assert await stored_bytes(connection, "two") == 0
    assert len([one for one in recorder.executed if "SELECT" in one.text]) == 2


def row_of(table: Table) -> dict[str, Any]:
    """Return a row in which every id is the same, so that it refers to the rows of the other tables."""
    return {column.name: value_of(column) for column in table.c}


def value_of(column: Column[Any]) -> Any:
    """Return a value of the type of a column."""
    if isinstance(column.type, Text):
        return TEXT
    if isinstance(column.type, String | JSON):
        return "one"
    if isinstance(column.type, LargeBinary):
        return b"one"
    if isinstance(column.type, UtcDateTime):
        return datetime.now(UTC)
    return False if isinstance(column.type, Boolean) else 1


def bytes_of(column: Column[Any]) -> int:
    """Return the bytes of the value of a column that are counted."""
    return next((size for kind, size in BYTES.items() if isinstance(column.type, kind)), 0)
