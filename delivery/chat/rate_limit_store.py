"""SQL of the token buckets that replicas share, on the database's clock."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Float, cast, extract, func, literal, select, update

from delivery.chat.rate_limit import STRICT_SECONDS
from delivery.chat.shared_rate_limit import (
    NewBucket,
    TokenBucketStore,
    TokenGrant,
    TokenRequest,
    grant_tokens,
)
from delivery.database.engine import Connection, Database, insert_on_conflict
from delivery.database.tables import allowances

_UNIX_EPOCH = 2440587.5
"""The Julian day on which Unix time begins."""

_DAY = 86400.0


class SqlTokenBuckets(TokenBucketStore):
    """Token buckets as rows; a row is locked during a request, so that requests are answered in turn."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(self, name: str, request: TokenRequest, new_bucket: NewBucket) -> TokenGrant:
        """Answer a request; raises DatabaseUnavailable."""
        async with self._database.begin() as connection:
            stored = await _load(connection, name)
            if stored is None:
                await _create(connection, name)
                stored = await _load(connection, name)
            assert stored is not None, "the row was inserted in this transaction"
            level, seen, strict_until, now = stored
            # A clock that was fast has written later times: the bucket would not fill until then.
            seen, strict_until = min(seen, now), min(strict_until, now + STRICT_SECONDS)
            bucket = new_bucket(now).restore(level, seen)
            grant, strict_until = grant_tokens(bucket, request, now=now, strict_until=strict_until)
            if request.spent or request.rate_limited or grant.tokens:
                level, seen = bucket.state
                await connection.execute(
                    update(allowances)
                    .where(allowances.c.name == name)
                    .values(level=level, seen=seen, strict_until=strict_until)
                )
            return grant


async def _load(connection: Connection, name: str) -> tuple[float, float, float, float] | None:
    """Return level, seen, strict_until and the database's time; locks the row for the transaction."""
    query = select(allowances.c.level, allowances.c.seen, allowances.c.strict_until, _now(connection))
    row = (await connection.execute(query.where(allowances.c.name == name).with_for_update())).first()
    return None if row is None else (row[0], row[1], row[2], float(row[3]))


async def _create(connection: Connection, name: str) -> None:
    """Insert a full bucket: a level above the capacity counts as the capacity."""
    full = insert_on_conflict(allowances, connection.dialect.name).values(
        name=name, level=1e9, seen=_now(connection), strict_until=0.0
    )
    await connection.execute(full.on_conflict_do_nothing(index_elements=["name"]))


def _now(connection: Connection) -> ColumnElement[float]:
    """Return the database's time in seconds, so that the clocks of replicas may differ."""
    if connection.dialect.name == "sqlite":
        return (func.julianday("now") - literal(_UNIX_EPOCH)) * literal(_DAY)
    return cast(extract("epoch", func.clock_timestamp()), Float(53))
