"""The gateway's user of PostgreSQL, without the right to create tables."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.cli.doctor.check import CheckState, DoctorCheck
from gateway.cli.doctor.local_checks import check_database
from gateway.config.settings import Settings
from gateway.infra.preflight import DependencyUnavailable, migrate_database
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


async def test_a_migrated_database_needs_no_such_right(postgres: PostgresCluster, tmp_path: Path) -> None:
    """An administrator may migrate, and the gateway's user only reads and writes."""
    database = postgres.create_database()
    await migrate_up(database)
    url = postgres.create_user(database, "IN ROLE pg_read_all_data, pg_write_all_data")
    await migrate_database(url, SecretStr(url))
    assert (await reported(tmp_path, url)).state is CheckState.OK
