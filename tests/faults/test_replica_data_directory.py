"""Replicas and their data directories: a killed replica continues its own work at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.chaos.deployment import Deployment, open_deployment
from bench.drain import stop_and_wait
from gateway_process import GatewayProcess
from postgres import PostgresUnavailable

pytestmark = pytest.mark.timeout(300)

LEASE = 240.0
"""Seconds of a lease's life, far beyond every wait here."""
LEASES = {"DOVECOTE_LEASE_TTL": str(LEASE), "DOVECOTE_SANDBOX__LOCK_TTL": str(LEASE)}
SOON = 60.0
CHAT = 1000


@asynccontextmanager
async def _two(directory: Path, **env: str) -> AsyncIterator[Deployment]:
    try:
        async with open_deployment(directory, replicas=2, env=LEASES | env) as deployment:
            yield deployment
    except PostgresUnavailable as error:
        pytest.skip(f"two replicas need PostgreSQL: {error}")


@pytest.mark.parametrize("point", ["step.end.after_commit", "delivery.noted"])
async def test_a_killed_replica_takes_its_own_work_back_at_once(point: str, tmp_path: Path) -> None:
    """The leases of a process that is certainly dead delay no work, and no message is sent twice."""
    async with _two(tmp_path) as deployment:
        first, second = deployment.replicas
        await stop_and_wait(second)
        await stop_and_wait(first)
        await first.start(env={"DOVECOTE_FAULT_POINT": point})
        await deployment.platform.say(CHAT, "!echo pigeon")
        assert await first.wait_for_exit() == -9
        await first.start()
        await deployment.platform.say(CHAT, "!echo dove")
        await deployment.platform.wait_until(lambda: "dove" in _last(deployment), seconds=SOON)
        said = [post.text for post in deployment.platform.messages(CHAT)]
    assert said == ["pigeon", "dove"]


async def test_a_killed_replica_has_the_sandbox_of_a_command_in_flight_back_at_once(tmp_path: Path) -> None:
    """A dead process's lease on the sandbox of a running command does not delay the next command."""
    async with _two(tmp_path) as deployment:
        first, second = deployment.replicas
        await stop_and_wait(second)
        await _start_long_command(deployment, first)
        await first.kill()
        await first.start()
        await deployment.platform.say(CHAT, "!echo dove")
        await deployment.platform.wait_until(lambda: "dove" in _last(deployment), seconds=SOON)


async def test_another_replica_has_that_sandbox_once_the_broker_reports_it(
    tmp_path: Path,
) -> None:
    """The killed one's presence ends; its lease on the sandbox would have lasted for minutes."""
    async with _two(tmp_path, DOVECOTE_LEASE_TTL="3") as deployment:
        first, second = deployment.replicas
        await stop_and_wait(second)
        await _start_long_command(deployment, first)
        await second.start()
        await first.kill()
        await deployment.platform.say(CHAT, "!echo dove")
        await deployment.platform.wait_until(lambda: "dove" in _last(deployment), seconds=SOON)


async def _start_long_command(deployment: Deployment, replica: GatewayProcess) -> None:
    """Have a command run for long."""
    await deployment.platform.say(CHAT, "!touch begun; sleep 600")
    async with asyncio.timeout(SOON):
        while not list(replica.data.rglob("begun")):  # noqa: ASYNC110 - polls a file
            await asyncio.sleep(0.05)


async def test_replicas_may_share_a_directory(tmp_path: Path) -> None:
    """The second replica has no exclusive right and takes over nothing; the first one goes on."""
    async with _two(tmp_path) as deployment:
        first, second = deployment.replicas
        await stop_and_wait(second)
        # The killed one keeps its share of the work until its leases end, which is soon; those of the first
        # live for long. Not ingress: the bots would be away until then.
        env = {"DOVECOTE_ROLES": "turns,delivery", "DOVECOTE_LEASE_TTL": "2"}
        beside = GatewayProcess(first.data, env=second.env | env)
        try:
            await beside.start()
            await beside.kill()
            await beside.start()
            await deployment.platform.say(CHAT, "!echo pigeon")
            await deployment.platform.wait_until(lambda: "pigeon" in _last(deployment), seconds=SOON)
        finally:
            await beside.stop()


def _last(deployment: Deployment) -> str:
    return "".join(post.text for post in deployment.platform.messages(CHAT)[-1:])
