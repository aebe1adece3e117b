"""Connections to PostgreSQL: accounts share them fairly, and those that cannot be used are replaced."""

from __future__ import annotations

import asyncio

from sqlalchemy import text
from structlog.testing import capture_logs

from delivery.database.engine import Database, DatabaseUnavailable
from delivery.fair_gate import working_for
from postgres import PostgresCluster

CALLERS = 40
"""More than there are connections."""

_PROCESS = text("SELECT pg_backend_pid()")


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


async def test_a_connection_that_fails_its_check_is_replaced(postgres: PostgresCluster) -> None:
    """What is left of a broken transaction costs the connection, and not the next request."""
    database = Database(postgres.create_database())
    try:
        async with database.read() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            first = (await connection.execute(_PROCESS)).scalar_one()
        assert driver is not None
        await driver.execute("SELECT 1")  # begins a transaction
        with capture_logs() as logs:
            async with database.read() as connection:
                assert (await connection.execute(_PROCESS)).scalar_one() != first
        assert [entry["event"] for entry in logs] == ["database.connection_discarded"]
        assert "autocommit" in logs[0]["because"]
    finally:
        await database.close()
