"""A PostgreSQL server that grants the gateway fewer connections than it would use."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from sqlalchemy import text

from delivery.database.engine import Database, DatabaseUnavailable
from postgres import PostgresCluster

LIMIT, CALLERS = 3, 40


@pytest.fixture
def limited(postgres: PostgresCluster) -> str:
    """The URL of a new database whose user may open three connections."""
    return postgres.create_user(postgres.create_database(), f"CONNECTION LIMIT {LIMIT}")


def connected(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """Connect to a database beside the gateway."""
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


async def used_at_once(database: Database, callers: int) -> list[object]:
    """Let callers use the database at the same time, and return what each got."""

    async def use(number: int) -> object:
        async with database.begin() as connection:
            return await connection.scalar(text(f"SELECT {number} FROM pg_sleep(0.01)"))

    return await asyncio.gather(*map(use, range(callers)), return_exceptions=True)


async def test_callers_share_the_connections_that_the_server_grants(limited: str) -> None:
    """No caller fails because the server refuses a further connection."""
    database = Database(limited)
    assert await used_at_once(database, CALLERS) == list(range(CALLERS))
    assert await used_at_once(database, CALLERS) == list(range(CALLERS))
    assert database.server_watch.opened <= LIMIT
    await database.close()


async def test_without_a_connection_the_refusal_is_raised(limited: str) -> None:
    """Others use all that the server grants: the reason is in the error, and nothing waits."""
    others = [connected(limited) for _ in range(LIMIT)]
    database = Database(limited)
    with pytest.raises(DatabaseUnavailable, match="too many connections"):
        async with database.read():
            pytest.fail("there is no connection")
    for one in others:
        one.close()
    async with asyncio.timeout(30):
        while await used_at_once(database, 1) != [0]:  # a session ends a moment after its connection
            pass
    await database.close()
