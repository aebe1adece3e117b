"""Locks of work that one replica at a time may do; a transaction holds them until it ends."""

from __future__ import annotations

from enum import IntEnum

from sqlalchemy import bindparam, func, select

from delivery.database.async_engine import AsyncConnection

_ACQUIRE = select(func.pg_advisory_xact_lock(bindparam("lock")))


class TransactionLock(IntEnum):
    """The keys of PostgreSQL's advisory locks."""

    MIGRATION = 0x646F7665636F7465
    DECLARED_RECORDS = 0x646F7665636F7466
    STREAMS = 0x646F7665636F7467


async def acquire(connection: AsyncConnection, lock: TransactionLock) -> None:
    """Wait until no other transaction holds the lock, and hold it; on SQLite each writer waits anyway.

    What is read afterwards contains what the transaction before wrote.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(_ACQUIRE, {"lock": lock.value})
