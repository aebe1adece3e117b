"""A `pg_dump` and a replica's directory go on where both were put back, with an event log that is empty."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.chaos.deployment import roomy
from gateway_process import gateway
from nats_servers import NatsServer
from postgres import Cluster, NoServer, cluster
from turn_requests import ALLOWED, ask, first_frame, has_ended, states, until
from webhook_receiver import answers, webhook_receiver


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL cluster."""
    try:
        with cluster() as running:
            yield running
    except NoServer as error:
        pytest.skip(f"PostgreSQL: {error}")


@asynccontextmanager
async def broker(directory: Path) -> AsyncIterator[NatsServer]:
    """Run a nats-server of the operator's own."""
    server = roomy(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def surroundings(database: str, nats: NatsServer) -> dict[str, str]:
    """Return the settings of a gateway at a database and a broker of the operator's own."""
    return ALLOWED | {
        "DOVECOTE_DATABASE_URL": database,
        "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
    }


async def test_a_dump_goes_on_at_an_empty_broker(tmp_path: Path, postgres: Cluster) -> None:
    """The turn in line is performed, the webhook called with its old id, readers begin anew, chats go on."""
    first = postgres.fresh()
    async with webhook_receiver(*[answers(503)] * 100) as receiver:
        async with (
            broker(tmp_path / "nats") as nats,
            gateway(tmp_path / "old", env=surroundings(first, nats)) as process,
        ):
            owed = await ask(process, "!echo owed", webhook={"url": receiver.url}, conversation="one")
            await until(process, "/deliveries", lambda found: "retrying" in states(found))
            async with process.http() as session, session.get("/conversations/one/snapshot") as answer:
                before = await answer.json()
            await process.stop()
            await process.start(env={"DOVECOTE_FAULT": "turn.claim.before_commit"})
            queued = await ask(process, "!echo queued", conversation="queued")
            await process.ended()
        refused = receiver.requests[-1].headers["webhook-id"]
        second = postgres.copied(first)
        shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=shutil.ignore_patterns("*.sock"))
        receiver.script.clear()
        async with (
            broker(tmp_path / "empty") as nats,
            gateway(tmp_path / "new", env=surroundings(second, nats)) as process,
        ):
            done = await until(process, f"/status/{queued['turnId']}", has_ended)
            assert (done["state"], "queued" in done["output"]) == ("completed", True)
            await until(process, "/deliveries", lambda found: states(found) == {"delivered"})
            assert receiver.requests[-1].headers["webhook-id"] == refused
            frame = await first_frame(process, f"{before['epoch']}-{before['seq']}")
            assert "event: reset" in frame, frame
            again = await ask(process, "!echo again", conversation="one")
            assert again["conversationId"] == owed["conversationId"]
            done = await until(process, f"/status/{again['turnId']}", has_ended)
            assert "again" in done["output"]
