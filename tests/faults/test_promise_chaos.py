"""G1, G2, G4 and G5 in small: kills and freezes at random moments, one and two replicas, and the count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench.chaos.deployment import Deployment, open_deployment
from bench.chaos.run import ChaosPlan, ChaosReport, run
from postgres import PostgresUnavailable

pytestmark = pytest.mark.timeout(400)

KILLS = ChaosPlan(
    turns=60, conversations=10, gateway_kills=3, nats_kills=2, errors=0.03, repeats=0.05, patience=60, seed=7
)


async def _run(plan: ChaosPlan, directory: Path) -> ChaosReport:
    try:
        return await run(plan, directory)
    except PostgresUnavailable as error:
        pytest.skip(f"two replicas need PostgreSQL: {error}")


@asynccontextmanager
async def _two(directory: Path, **env: str) -> AsyncIterator[Deployment]:
    try:
        async with open_deployment(directory, replicas=2, env=env) as deployment:
            yield deployment
    except PostgresUnavailable as error:
        pytest.skip(f"two replicas need PostgreSQL: {error}")


@pytest.mark.parametrize("replicas", [1, 2])
async def test_g1_g2_g4_nothing_is_lost_or_reordered_through_kills(replicas: int, tmp_path: Path) -> None:
    """Every message is answered, in order, with an exact event log, however often processes are killed."""
    report = await _run(replace(KILLS, replicas=replicas), tmp_path / "run")
    assert (report.gateway_kills, report.nats_kills) == (3, 2)
    assert (report.stuck, report.tally.lost, report.tally.reordered) == (0, 0, 0), report.tally.faults
    assert report.tally.logs_exact == report.tally.logs, report.tally.faults
    # At most what was in flight when it was killed: one delivery for each chat, and rarely more than one.
    assert report.tally.duplicated <= 2 * report.gateway_kills


async def test_g4_g5_a_frozen_replica_commits_nothing_when_it_wakes(tmp_path: Path) -> None:
    """Stopped past its leases' life while turns run, a replica changes no order and no event log."""
    plan = ChaosPlan(
        turns=40,
        conversations=8,
        gateway_kills=0,
        nats_kills=0,
        freezes=3,
        frozen_seconds=4.0,
        replicas=2,
        seed=11,
        env={"DOVECOTE_LEASE_TTL": "2"},
    )
    report = await _run(plan, tmp_path / "run")
    assert report.freezes == 3
    assert (report.stuck, report.tally.lost, report.tally.reordered) == (0, 0, 0), report.tally.faults
    assert report.tally.logs_exact == report.tally.logs, report.tally.faults
    assert report.tally.duplicated <= report.freezes


async def test_g4_another_replica_takes_over_from_a_dead_one(tmp_path: Path) -> None:
    """With one of two replicas dead for good, whichever it was, the other goes on with its conversations."""
    async with _two(tmp_path, DOVECOTE_LEASE_TTL="2") as deployment:
        said = deployment.platform
        await said.say(7, "!sleep 2; echo pigeon")
        await said.wait_until(lambda: not said.world.updates, seconds=30)
        await deployment.replicas[0].kill()
        await said.say(7, "!echo second")
        await said.wait_until(lambda: any("second" in post.text for post in said.messages(7)), seconds=60)
        deployment.replicas[0] = deployment.replicas[1]
        conversation = (await deployment.conversations())[7]
        log = await deployment.log_of(conversation)
    assert [event["type"] for event in log].count("turn.completed") == 2


async def test_g2_restarts_without_work_say_nothing(tmp_path: Path) -> None:
    """Killed and started again and again with nothing to do, the gateway sends nothing."""
    async with open_deployment(tmp_path, replicas=1) as deployment:
        said = deployment.platform
        await said.say(7, "!echo pigeon")
        await said.wait_until(lambda: any("pigeon" in post.text for post in said.messages(7)), seconds=30)
        await deployment.until_relayed((await deployment.conversations())[7], ended=1)
        await deployment.kill_gateway(0)
        sends = [call for call in said.calls if call[0] in {"sendMessage", "editMessageText"}]
        for _ in range(3):
            await deployment.kill_gateway(0)
        await said.say(8, "!echo other")
        await said.wait_until(lambda: any("other" in post.text for post in said.messages(8)), seconds=30)
        later = [call for call in said.calls if call[0] in {"sendMessage", "editMessageText"}]
    assert [call for call in later if str(call[1]["chat_id"]) == "7"] == sends
