"""A PostgreSQL server that is gone without a word is noticed; nothing waits for it without an end."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.database.instance_claim import claim_database
from delivery.database.postgres import FAILURE_DETECTION, ServerWatch, with_failure_detection
from fault_proxy import FaultProxy, fault_proxy
from postgres import PostgresCluster


@asynccontextmanager
async def served(postgres: PostgresCluster) -> AsyncIterator[tuple[FaultProxy, str]]:
    """Yield a proxy before the server, and the URL of a new database through it."""
    place = make_url(postgres.create_database())
    async with fault_proxy(host=f"{place.query['host']}/.s.PGSQL.5432") as proxy:
        yield proxy, f"postgresql+psycopg://dovecote@127.0.0.1:{proxy.port}/{place.database}"


async def test_a_server_that_says_nothing_is_unavailable(postgres: PostgresCluster) -> None:
    """For a transaction, and for the claim at the start."""
    async with served(postgres) as (proxy, url):
        proxy.black_hole()
        hurried = f"{url}?connect_timeout=2"
        database = Database(hurried)
        with pytest.raises(DatabaseUnavailable, match="the database does not answer: connection timeout"):
            async with database.read():
                pytest.fail("there is no connection")
        await database.close()
        with pytest.raises(OSError, match="the database does not answer: connection timeout"):
            async with claim_database(hurried, shared=False, owner="test"):
                pytest.fail("there is no claim")


async def test_the_error_names_each_server_in_one_line() -> None:
    """Of a primary and its standby both are named, without the hints of libpq, for lines of the log."""
    url = "postgresql+psycopg://dovecote@/d?host=127.0.0.1:1&host=127.0.0.1:2"
    database = Database(url)
    refused = 'connection to server at "127.0.0.1", port {} failed: Connection refused'
    says = re.escape(f"the database does not answer: {refused.format(2)}; {refused.format(1)}")
    with pytest.raises(DatabaseUnavailable, match=f"^{says}$"):
        async with database.read():
            pytest.fail("there is no connection")
    await database.close()
    with pytest.raises(OSError, match=f"^{says}$"):
        async with claim_database(url, shared=False, owner="test"):
            pytest.fail("there is no claim")


async def test_a_connection_notices_that_its_server_is_gone(postgres: PostgresCluster) -> None:
    """The kernel ends a connection without acknowledgements, and checks an idle one."""
    async with served(postgres) as (_proxy, url):
        database = Database(url)
        async with database.read() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            with socket.socket(fileno=os.dup(driver.fileno())) as seen:
                assert seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
                assert seen.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        await database.close()


async def test_a_statement_at_a_frozen_server_fails(postgres: PostgresCluster) -> None:
    """Its machine acknowledges what is sent; the server answers nothing, on no connection."""
    async with served(postgres) as (proxy, url):
        database = Database(f"{url}?connect_timeout=2")
        watch = ServerWatch(interval=0.05, patience=0.2, answer_within=0.5)
        watch.attach(database._engine.sync_engine)
        async with watch.running(), asyncio.timeout(30):
            async with database.read() as connection:
                proxy.black_hole()
                with pytest.raises(OperationalError):
                    await connection.scalar(select(1))
            with pytest.raises(DatabaseUnavailable, match="the database does not answer"):
                await _select_one(database)
            proxy.heal()
            await _select_one(database)
        await database.close()


async def test_a_connection_that_the_system_ended_is_no_error(postgres: PostgresCluster) -> None:
    """The kernel ends it while the watch asks the server whether it answers."""
    async with served(postgres) as (proxy, url):
        database = Database(url)
        watch = ServerWatch(interval=0.05, patience=0.2, answer_within=1)
        watch.attach(database._engine.sync_engine)
        with capture_logs() as logs:
            async with watch.running(), asyncio.timeout(30), database.read() as connection:
                driver = (await connection.get_raw_connection()).driver_connection
                assert driver is not None
                proxy.black_hole()
                asked = asyncio.ensure_future(connection.scalar(select(1)))
                while proxy.open_connections < 2:  # noqa: ASYNC110 - the proxy reports none
                    await asyncio.sleep(0.01)
                with socket.socket(fileno=os.dup(driver.fileno())) as used:
                    used.shutdown(socket.SHUT_RDWR)
                with pytest.raises(OperationalError):
                    await asked
                while not logs:  # noqa: ASYNC110 - the watch reports nothing else
                    await asyncio.sleep(0.01)
        assert [line["event"] for line in logs] == ["database.connections_ended"]
        await database.close()


async def test_the_log_says_when_the_server_is_away_and_back(postgres: PostgresCluster) -> None:
    """One line at each end of an outage, however many attempts failed; the first connection is none."""
    async with served(postgres) as (proxy, url):
        database = Database(f"{url}?connect_timeout=2")
        with capture_logs() as logs:
            async with database.server_watch.running():
                await _select_one(database)
                assert logs == []
                proxy.black_hole()
                await database.close()
                for _ in range(2):
                    with pytest.raises(DatabaseUnavailable):
                        await _select_one(database)
                proxy.heal()
                await _select_one(database)
                await _select_one(database)
        assert [line["event"] for line in logs] == ["database.unavailable", "database.reconnected"]
        assert "timeout" in logs[0]["error"]
        assert "database_url" in logs[0]["remedy"]
        assert logs[1]["seconds"] >= 1
        await database.close()


async def _select_one(database: Database) -> None:
    async with database.read() as connection:
        assert await connection.scalar(select(1)) == 1


async def test_a_slow_statement_has_its_time(postgres: PostgresCluster) -> None:
    """The server answers other connections, so nothing ends a statement that takes long."""
    async with served(postgres) as (_proxy, url):
        database = Database(url)
        watch = ServerWatch(interval=0.05, patience=0.1, answer_within=30)
        watch.attach(database._engine.sync_engine)
        async with watch.running(), database.read() as connection:
            assert (await connection.execute(select(func.pg_sleep(1)))).one() is not None
        await database.close()


def test_the_url_has_precedence() -> None:
    """An operator may set each parameter, several servers stay several, and a SQLite file has none."""
    url = "postgresql+psycopg://u@/db?host=one:5432&host=two:5432&connect_timeout=3"
    query = with_failure_detection(url).query
    assert query["host"] == ("one:5432", "two:5432")
    assert {name: query[name] for name in FAILURE_DETECTION} == {**FAILURE_DETECTION, "connect_timeout": "3"}
    assert not with_failure_detection("sqlite+aiosqlite:///gateway.db").query


@pytest.mark.parametrize(
    ("setting", "statement"),
    [
        ("idle_in_transaction_session_timeout", "SELECT 1"),
        ("statement_timeout", "SELECT pg_sleep(20)"),
        ("idle_in_transaction_session_timeout", ""),
    ],
)
async def test_a_time_limit_of_the_server_is_named(
    postgres: PostgresCluster, setting: str, statement: str
) -> None:
    """The first error names the setting that ended the transaction and what to do, also at the commit."""
    database = Database(postgres.create_database())
    try:
        with pytest.raises(DatabaseUnavailable, match=rf"ALTER ROLE .* SET {setting} = 0"):
            await _exceed(database, setting, statement)
    finally:
        await database.close()


async def _exceed(database: Database, setting: str, statement: str) -> None:
    async with database.begin() as connection:
        await connection.execute(text(f"SET {setting} = '20ms'"))
        if setting.startswith("idle"):
            await _until_ended(database, await _process_of(connection))
        if statement:
            await connection.execute(text(statement))


async def _process_of(connection: Connection) -> int:
    raw = (await connection.get_raw_connection()).driver_connection
    assert raw is not None
    number: int = raw.pgconn.backend_pid
    return number


async def _until_ended(database: Database, process: int) -> None:
    """Wait until the server has ended the connection that a process of it served."""
    served_by = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :process")
    is_there = True
    while is_there:
        await asyncio.sleep(0.01)
        async with database.read() as connection:  # a transaction sees the first answer for its whole life
            is_there = bool((await connection.execute(served_by, {"process": process})).scalar_one())
