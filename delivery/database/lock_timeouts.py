"""Transactions that lock many rows, as deletions do: they end when others need the rows, and begin again.

Such a transaction and a short one may lock rows in different orders. On PostgreSQL they wait for each other
until the server ends either of them after `deadlock_timeout` (1 s). The long one ends itself before, so it is
nearly always the one that begins again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy import text

from delivery.database.engine import Connection, Database, TransactionConflict

LOCK_TIMEOUT = text("SET LOCAL lock_timeout = '500ms'")
"""Ends a statement that waits longer for one lock."""
MAX_SECONDS = 30.0
"""How long the work is repeated."""
MAX_PAUSE_SECONDS = 0.3
"""The longest pause before a repetition; it is random."""

Result = TypeVar("Result")


async def run_with_lock_timeout(
    database: Database, work: Callable[[Connection], Awaitable[Result]], *, seconds: float = MAX_SECONDS
) -> Result:
    """Run `work` in a transaction, and again if it waited too long for a row.

    Raises TransactionConflict after that many seconds. As `work` may run several times, it changes nothing
    but the database.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            async with database.begin() as connection:
                if not database.is_sqlite:
                    await connection.execute(LOCK_TIMEOUT)
                return await work(connection)
        except TransactionConflict:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(random.uniform(0, MAX_PAUSE_SECONDS))  # noqa: S311 - jitter
