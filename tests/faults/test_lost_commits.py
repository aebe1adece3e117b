"""A fail-over of PostgreSQL that loses commits while the gateway runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_process import GatewayProcess, gateway
from postgres import PostgresCluster, PostgresUnavailable, own_cluster
from turn_requests import is_finished, poll_until, start_turn


@pytest.fixture
def postgres() -> Iterator[PostgresCluster]:
    """A PostgreSQL cluster of this test alone."""
    try:
        with own_cluster() as running:
            yield running
    except PostgresUnavailable as error:
        pytest.skip(f"PostgreSQL: {error}")


async def ask(process: GatewayProcess, text: str) -> str:
    """Start a turn, wait for its end, and return its output."""
    turn = await start_turn(process, text, conversation="one")
    done = await poll_until(process, f"/status/{turn['turnId']}", is_finished)
    assert done["state"] == "completed", done
    return str(done["output"])


async def test_a_gateway_ends_when_its_database_lost_commits(
    tmp_path: Path, postgres: PostgresCluster
) -> None:
    """A restart without a loss ends nothing. After a loss the next start publishes new events."""
    settings = {"DOVECOTE_DATABASE_URL": postgres.create_database()}
    async with gateway(tmp_path / "data", env=settings) as process:
        await ask(process, "!echo kept")
        await asyncio.to_thread(postgres.keep_copy)
        for number in range(3):
            await ask(process, f"!echo lost {number}")
        await asyncio.to_thread(postgres.go_back)
        assert await process.wait_for_exit() == 1
        assert any("the database has lost commits" in line for line in process.log)

        await process.start()
        assert "again" in await ask(process, "!echo again")
        assert "turn.completed" in {event["type"] for event in await process.events("one")}
