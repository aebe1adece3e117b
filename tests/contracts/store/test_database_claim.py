"""One gateway, or several that expect each other, may use a database; a dead one does not block it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from delivery.database.async_engine import create_async_engine
from delivery.database.instance_claim import DatabaseClaimed, SessionsPooled, claim_database
from gateway.infra.preflight import DatabaseInUse
from gateway_process import GatewayProcess, gateway
from nats_servers import free_ports

HOLD = """
import asyncio, sys
from delivery.database.async_engine import create_async_engine
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
        assert await second.wait_for_exit(60) == 1  # the unit for systemd starts it again
        words = "\n".join(second.log)
        assert "another gateway uses this database" in words
        assert "DOVECOTE_REPLICAS" in words
        assert "PostgreSQL" not in words
        await first.kill()
        await second.start()
        await second.stop()


def test_a_claim_of_a_machine_that_is_gone_is_said_to_end() -> None:
    """On PostgreSQL the claim lasts until the server notices that the machine is gone."""
    error = DatabaseInUse("postgresql://gateway@db.example/gw", DatabaseClaimed("dovecote one 7"), 1)
    assert str(error).startswith("database_url = db.example (DOVECOTE_DATABASE_URL): another gateway uses")
    assert "PostgreSQL releases its claim within half a minute" in str(error)


@asynccontextmanager
async def pgbouncer(url: str, mode: str) -> AsyncIterator[str]:
    """Run PgBouncer in a pool mode in front of a server; yields the database's URL there."""
    program = shutil.which("pgbouncer") or pytest.skip("no pgbouncer (Debian: pgbouncer)")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        settings = _pooler_settings(Path(folder), url, mode, port)
        user = "postgres" if os.geteuid() == 0 else None  # it does not run as root
        pooler = await asyncio.create_subprocess_exec(
            program, "--quiet", str(settings), user=user, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(60):
                while not await _answers(port):  # noqa: ASYNC110 - another process opens it
                    await asyncio.sleep(0.01)
            yield f"postgresql+psycopg://dovecote@127.0.0.1:{port}/{make_url(url).database}"
        finally:
            with suppress(ProcessLookupError):
                pooler.kill()
            await pooler.wait()


def _pooler_settings(folder: Path, url: str, mode: str, port: int) -> Path:
    """Write the settings of PgBouncer, which another user reads."""
    folder.chmod(0o755)
    server, settings = make_url(url), folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={server.query['host']} user={server.username}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\n"
    )
    return settings


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_pooler_of_transactions_is_refused_and_one_of_sessions_is_not(database_url: str) -> None:
    """Locks of shared sessions outlive their gateway, and a second gateway would have them too."""
    if database_url.startswith("sqlite"):
        pytest.skip("a SQLite file has no pooler")
    async with pgbouncer(database_url, "transaction") as pooled:
        with pytest.raises(SessionsPooled):
            async with claimed(pooled):
                pytest.fail("the claim means nothing")
    async with pgbouncer(database_url, "session") as pooled:
        async with claimed(pooled):
            with pytest.raises(DatabaseClaimed):
                async with claimed(pooled):
                    pytest.fail("both have the database")
        async with claimed(pooled, shared=True), claimed(pooled, shared=True):
            pass


async def test_a_claim_that_ended_is_free_at_once(database_url: str) -> None:
    """The server ends a closed session later, so the claim does not end with it."""
    if database_url.startswith("sqlite"):
        pytest.skip("a SQLite file has no sessions")
    engine = create_async_engine(database_url, isolation_level="AUTOCOMMIT")
    held = text(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE locktype = 'advisory' AND datname = current_database()"
    )
    async with engine.connect() as connection:
        for shared in [False, True] * 10:
            async with claimed(database_url, shared=shared):
                assert (await connection.execute(held)).scalar_one() == 1
            assert (await connection.execute(held)).scalar_one() == 0
    await engine.dispose()


async def test_a_new_database_beside_the_data_of_another_ends_the_start(
    database_url: str, tmp_path: Path
) -> None:
    """The error names the file that would be left behind; once it is away, the gateway starts."""
    left = tmp_path / "data" / "dovecote.db"
    elsewhere = {"DOVECOTE_DATABASE_URL": database_url}
    async with gateway(tmp_path / "data") as process:
        await process.stop()
        await process.start(env=elsewhere, wait=False)
        assert await process.wait_for_exit() == 2, process.log
        assert f"{left} has the conversations" in "\n".join(process.log)
        moved = left.rename(tmp_path / "moved.db")
        await process.start(env=elsewhere)
        await process.stop()
        moved.rename(left)
        await process.start(env=elsewhere)
