"""A `pg_dump` and a replica's directory go on where both were put back, with an event log that is empty."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.chaos.deployment import large_nats_server
from databases import postgres
from gateway_process import gateway
from nats_servers import NatsServer
from postgres import PostgresCluster
from turn_requests import ALLOWED, is_finished, item_states, poll_until, read_first_event, start_turn
from webhook_receiver import respond, webhook_receiver

__all__ = ["postgres"]


@asynccontextmanager
async def run_nats(directory: Path) -> AsyncIterator[NatsServer]:
    """Run a nats-server of the operator's own."""
    server = large_nats_server(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def gateway_settings(database: str, nats: NatsServer) -> dict[str, str]:
    """Return the settings of a gateway at a database and a broker of the operator's own."""
    return ALLOWED | {
        "DOVECOTE_DATABASE_URL": database,
        "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
    }


async def test_a_dump_goes_on_at_an_empty_broker(tmp_path: Path, postgres: PostgresCluster) -> None:
    """The queued turn runs, the webhook is called with its old id, readers reset, chats go on."""
    first = postgres.create_database()
    async with webhook_receiver(*[respond(503)] * 100) as receiver:
        async with (
            run_nats(tmp_path / "nats") as nats,
            gateway(tmp_path / "old", env=gateway_settings(first, nats)) as process,
        ):
            owed = await start_turn(process, "!echo owed", webhook={"url": receiver.url}, conversation="one")
            await poll_until(process, "/deliveries", lambda found: "retrying" in item_states(found))
            async with process.http() as session, session.get("/conversations/one/snapshot") as answer:
                before = await answer.json()
            await process.stop()
            await process.start(env={"DOVECOTE_ROLES": "ingress"})
            queued = await start_turn(process, "!echo queued", conversation="queued")
            await process.kill()
        refused = receiver.requests[-1].headers["webhook-id"]
        second = postgres.copy_database(first)
        shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=shutil.ignore_patterns("*.sock"))
        receiver.script.clear()
        async with (
            run_nats(tmp_path / "empty") as nats,
            gateway(tmp_path / "new", env=gateway_settings(second, nats)) as process,
        ):
            done = await poll_until(process, f"/status/{queued['turnId']}", is_finished)
            assert (done["state"], "queued" in done["output"]) == ("completed", True)
            await poll_until(process, "/deliveries", lambda found: item_states(found) == {"delivered"})
            assert receiver.requests[-1].headers["webhook-id"] == refused
            frame = await read_first_event(process, f"{before['epoch']}-{before['seq']}")
            assert "event: reset" in frame, frame
            again = await start_turn(process, "!echo again", conversation="one")
            assert again["conversationId"] == owed["conversationId"]
            done = await poll_until(process, f"/status/{again['turnId']}", is_finished)
            assert "again" in done["output"]


async def test_a_restored_job_is_reported_as_ended(tmp_path: Path, postgres: PostgresCluster) -> None:
    """The copied directory counts as another replica; a gateway that is alone still asks for the job."""
    first = postgres.create_database()
    async with (
        run_nats(tmp_path / "nats") as nats,
        gateway(tmp_path / "old", env=gateway_settings(first, nats)) as process,
    ):
        begun = await start_turn(process, "!&sleep 300", conversation="one")
        await poll_until(process, "/jobs", lambda found: item_states(found) == {"running"})
        await poll_until(process, f"/status/{begun['turnId']}", is_finished)
        second = postgres.copy_database(first)
        shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=shutil.ignore_patterns("*.sock"))
        await process.kill()
    async with (
        run_nats(tmp_path / "empty") as nats,
        gateway(tmp_path / "new", env=gateway_settings(second, nats)) as process,
    ):
        jobs = await poll_until(process, "/jobs", lambda found: item_states(found) != {"running"})
        assert item_states(jobs) <= {"failed", "lost"}
