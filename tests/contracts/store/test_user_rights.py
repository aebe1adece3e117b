"""The gateway's user of PostgreSQL, without the right to create tables."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine, make_url

from gateway.cli.doctor.check import CheckState, DoctorCheck
from gateway.cli.doctor.local_checks import check_database
from gateway.config.settings import Settings
from gateway.infra.preflight import (
    DatabaseRefused,
    DependencyUnavailable,
    claimed_database,
    migrate_database,
)
from gateway.migrations import migrate_up
from postgres import PostgresCluster

REMEDY = "let its user create tables"


async def reported(directory: Path, url: str) -> DoctorCheck:
    """Return what `doctor` says of the database at a URL."""
    settings = Settings(data_dir=directory, database_url=SecretStr(url))
    (check,) = await asyncio.to_thread(lambda: list(check_database(settings)))
    return check


async def test_a_user_who_may_create_no_tables_is_reported(postgres: PostgresCluster, tmp_path: Path) -> None:
    """The start and `doctor` say what to grant: the server runs, and the URL is right."""
    url = postgres.create_user(postgres.create_database())
    with pytest.raises(DependencyUnavailable, match=f"permission denied for schema public. .*{REMEDY}"):
        await migrate_database(url, SecretStr(url))
    check = await reported(tmp_path, url)
    assert check.state is CheckState.FAILED
    assert check.remedy.startswith(REMEDY)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_is_not_in_utf_8_is_refused(
    postgres: PostgresCluster, tmp_path: Path, encoding: str
) -> None:
    """It could not store every message; the error names the encoding and the remedy."""
    url = make_url(postgres.create_database())
    name = f"{url.database}_{encoding.lower()}"
    options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} {options}")
    admin.dispose()
    configured = SecretStr(url.set(database=name).render_as_string(hide_password=False))
    with pytest.raises(DatabaseRefused, match=f"is {encoding}, .* ENCODING 'UTF8'"):
        async with claimed_database(Settings(data_dir=tmp_path, database_url=configured)):
            pytest.fail("it cannot store every message")


async def test_a_database_that_only_reads_is_reported(postgres: PostgresCluster) -> None:
    """The start says what to name or to turn off: the server runs, and the URL is right."""
    url = postgres.create_database()
    read_only = make_url(url).update_query_dict({"options": "-c default_transaction_read_only=on"})
    text = read_only.render_as_string(hide_password=False)
    with pytest.raises(DependencyUnavailable, match="name the primary if this is a standby"):
        await migrate_database(text, SecretStr(text))


async def test_a_migrated_database_needs_no_such_right(postgres: PostgresCluster, tmp_path: Path) -> None:
    """An administrator may migrate, and the gateway's user only reads and writes."""
    database = postgres.create_database()
    await migrate_up(database)
    url = postgres.create_user(database, "IN ROLE pg_read_all_data, pg_write_all_data")
    await migrate_database(url, SecretStr(url))
    assert (await reported(tmp_path, url)).state is CheckState.OK
