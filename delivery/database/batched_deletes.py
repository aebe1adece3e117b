"""Deletion of old rows in short steps, so that other writers get the database in between."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Table, delete, select, tuple_

from delivery.database.engine import Connection

BATCH_ROWS = 1000
"""Rows that one step deletes at most; a step is one short transaction."""


async def delete_batch(connection: Connection, table: Table, *conditions: ColumnElement[bool]) -> int:
    """Delete at most `BATCH_ROWS` rows for which the conditions hold; return how many were deleted."""
    keys = list(table.primary_key.columns)
    some = select(*keys).where(*conditions).limit(BATCH_ROWS)
    which = keys[0].in_(some) if len(keys) == 1 else tuple_(*keys).in_(some)
    return (await connection.execute(delete(table).where(which))).rowcount
