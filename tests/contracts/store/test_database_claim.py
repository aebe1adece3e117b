"""One gateway, or several that expect each other, may use a database; a dead one does not block it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from delivery.database.instance_claim import DatabaseClaimed, claim_database
from gateway_process import GatewayProcess, gateway

HOLD = """
import asyncio, sys
from delivery.database.instance_claim import claim_database

async def hold():
    async with claim_database(sys.argv[1], shared=False, owner="the killed one"):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(hold())
"""


@asynccontextmanager
async def claimed(url: str, *, shared: bool = False) -> AsyncIterator[None]:
    """Claim without waiting for others."""
    async with claim_database(url, shared=shared, owner="the other one", patience=0):
        yield


async def test_a_second_process_is_refused_until_the_first_one_ends(database_url: str) -> None:
    """The error names the holder; afterwards the claim is free."""
    async with claimed(database_url):
        with pytest.raises(DatabaseClaimed, match=r"another gateway uses this database \(.+\)"):
            async with claimed(database_url):
                pytest.fail("both have the database")
    async with claimed(database_url):
        pass


async def test_replicas_share_and_refuse_one_that_expects_to_be_alone(database_url: str) -> None:
    """Several may claim it shared where the database allows several processes."""
    if database_url.startswith("sqlite"):
        pytest.skip("a SQLite file supports one gateway only")
    async with claimed(database_url, shared=True), claimed(database_url, shared=True):
        with pytest.raises(DatabaseClaimed):
            async with claimed(database_url):
                pytest.fail("it is not alone")


async def test_a_killed_process_does_not_lock_out_the_next_one(database_url: str) -> None:
    """The operating system ends its claim; the next one waits for that moment."""
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, database_url, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    with pytest.raises(DatabaseClaimed):
        async with claimed(database_url):
            pytest.fail("the other process has it")
    holder.kill()
    await holder.wait()
    async with claim_database(database_url, shared=False, owner="the next one", patience=60):
        pass


async def test_a_second_gateway_is_refused_with_words(tmp_path: Path) -> None:
    """It has a data directory of its own, and the database of the first one; a kill frees the database."""
    env = {
        "DOVECOTE_DATABASE_URL": f"sqlite:///{tmp_path / 'one.db'}",
        "DOVECOTE_SECRET_KEYS": "a-key-for-two-gateways-of-one-database",
    }
    second = GatewayProcess(tmp_path / "second", env=env)
    async with gateway(tmp_path / "first", env=env) as first:
        await second.start(wait=False)
        assert await second.wait_for_exit(60) == 2
        words = "\n".join(second.log)
        assert "another gateway uses this database" in words
        assert "DOVECOTE_REPLICAS" in words
        await first.kill()
        await second.start()
        await second.stop()
