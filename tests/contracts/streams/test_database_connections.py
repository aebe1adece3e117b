"""The connections to PostgreSQL are shared fairly: an account that holds many leaves some to others."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from delivery.database.engine import Database, DatabaseUnavailable
from delivery.fair_gate import working_for
from postgres import PostgresCluster

CALLERS = 40
"""More than there are connections."""


async def test_connections_of_one_account_leave_some_to_others(postgres: PostgresCluster) -> None:
    """While one account holds all that it can get, another one reads and writes at once."""
    database = Database(postgres.create_database())
    release, holding, refused = asyncio.Event(), list[int](), list[int]()

    async def hold(number: int) -> None:
        try:
            async with database.read() as connection:
                await connection.execute(text("SELECT 1"))
                holding.append(number)
                await release.wait()
        except DatabaseUnavailable:
            refused.append(number)

    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                with working_for("busy"):
                    group.create_task(hold(number))
            while len(holding) + len(refused) < CALLERS:  # noqa: ASYNC110 - the driver appends
                await asyncio.sleep(0.01)
            assert holding
            assert refused
            with working_for("quiet"):
                async with database.begin() as connection:
                    assert (await connection.execute(text("SELECT 7"))).scalar_one() == 7
                    async with database.read() as second:
                        assert (await second.execute(text("SELECT 8"))).scalar_one() == 8
            release.set()
    finally:
        release.set()
        await database.close()
