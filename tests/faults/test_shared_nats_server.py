"""Gateways on two databases, such as an original and its restored copy, do not use one NATS server."""

from __future__ import annotations

import asyncio
import shutil
import socket
from contextlib import AsyncExitStack
from pathlib import Path

from commands import run_to_end
from databases import postgres
from delivery.broker.connection import connect
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.stream_config import EVENTS, StreamConfig, create_events
from gateway.infra.replica_presence import BrokerInUse, DatabaseAnnouncement
from gateway_process import GatewayProcess, gateway
from nats_servers import TOKEN, nats_server
from postgres import PostgresCluster
from turn_requests import is_finished, poll_until, start_turn

__all__ = ["postgres"]

TURNS = 8


async def all_complete(process: GatewayProcess) -> None:
    """Run turns in several conversations, which are in different shards."""
    for number in range(TURNS):
        turn = await start_turn(process, "!echo hi", conversation=f"c{number}")
        await poll_until(process, turn["statusUrl"], is_finished)


async def start_fails(data: Path, env: dict[str, str]) -> tuple[int | None, str]:
    """Return the exit code and the errors of a start."""
    code, _, errors = await run_to_end("serve", "--data", str(data), "--port", "0", cwd=data.parent, **env)
    return code, errors


async def test_a_restored_copy_does_not_start_beside_the_original(tmp_path: Path) -> None:
    """It ends and names the setting, the original goes on; after a kill of the original the copy starts."""
    async with nats_server(tmp_path / "nats") as server:
        url = f"nats://{TOKEN}@127.0.0.1:{server.port}"
        env = {"DOVECOTE_NATS_URL": url, "DOVECOTE_EVENT_LOG_BYTES": "16777216", "DOVECOTE_LEASE_TTL": "6"}
        async with gateway(tmp_path / "data", env=env) as original:
            await original.stop()
            shutil.copytree(tmp_path / "data", tmp_path / "copy")
            await original.start()
            code, errors = await start_fails(tmp_path / "copy", env)
            assert (code, "DOVECOTE_NATS_URL" in errors) == (1, True), errors
            await all_complete(original)
            await original.kill()
        async with gateway(tmp_path / "copy", env=env) as copy:
            await all_complete(copy)


async def test_of_two_that_start_at_once_one_goes_on(tmp_path: Path) -> None:
    """The other one is refused, and has not changed the settings of the stream."""
    async with nats_server(tmp_path / "nats") as server, AsyncExitStack() as stack:
        nats = await stack.enter_async_context(connect(server.url, token=server.token))
        await create_events(nats, StreamConfig(max_bytes=100_000_000))
        leases = [JetStreamLeases(nats, LeaseHolder(instance=name, boot=name)) for name in "abcde"]
        announcements = [
            DatabaseAnnouncement(one, database=f"d{number // 2}", boot=str(number), first_key="k", ttl=1)
            for number, one in enumerate(leases)
        ]
        await create_events(nats, StreamConfig(max_bytes=200_000_000))
        entered = await asyncio.gather(
            *(stack.enter_async_context(one.maintained()) for one in announcements), return_exceptions=True
        )
        started = {number // 2 for number, error in enumerate(entered) if error is None}
        assert len(started) == 1, entered
        refused = [error for error in entered if error is not None]
        assert len(refused) in {3, 4}
        assert all(isinstance(error, BrokerInUse) for error in refused), refused
        await announcements[2 * started.pop()].require_alone()
        info = await nats.api_request(f"STREAM.INFO.{EVENTS}")
        assert (
            info["config"]["max_bytes"] == StreamConfig(max_bytes=100_000_000).streams()[EVENTS]["max_bytes"]
        )


async def test_databases_of_one_server_are_different(tmp_path: Path, postgres: PostgresCluster) -> None:
    """A second installation is refused; a second replica is not."""
    async with nats_server(tmp_path / "nats") as server:
        url = f"nats://{TOKEN}@127.0.0.1:{server.port}"
        env = {"DOVECOTE_NATS_URL": url, "DOVECOTE_EVENT_LOG_BYTES": "16777216", "DOVECOTE_LEASE_TTL": "6"}
        env |= {"DOVECOTE_REPLICAS": "2", "DOVECOTE_SHARED_FILES": "true"}
        one, other = ({**env, "DOVECOTE_DATABASE_URL": postgres.create_database()} for _ in range(2))
        async with (
            gateway(tmp_path / "data", env=one) as first,
            gateway(tmp_path / "data", env=one) as second,
        ):
            code, errors = await start_fails(tmp_path / "other", other)
            assert (code, "DOVECOTE_NATS_URL" in errors) == (1, True), errors
            await all_complete(first)
            await all_complete(second)


async def test_the_rotation_of_the_key_names_a_gateway_with_the_old_one_first(
    tmp_path: Path, postgres: PostgresCluster
) -> None:
    """It encrypts nothing now, but the next secret with the old key; its restart completes the rotation."""
    old, new = "old-" + "o" * 40, "new-" + "n" * 40
    async with nats_server(tmp_path / "nats") as server:
        url = f"nats://{TOKEN}@127.0.0.1:{server.port}"
        env = {"DOVECOTE_NATS_URL": url, "DOVECOTE_EVENT_LOG_BYTES": "16777216", "DOVECOTE_LEASE_TTL": "6"}
        env |= {"DOVECOTE_DATABASE_URL": postgres.create_database(), "DOVECOTE_SECRET_KEYS": f"{old},{new}"}
        renewed = env | {"DOVECOTE_SECRET_KEYS": f"{new},{old}"}
        words = ("secrets", "reencrypt", "--data", str(tmp_path / "data"))
        async with gateway(tmp_path / "data", env=env) as process:
            code, _, errors = await run_to_end(*words, cwd=tmp_path, **renewed)
            assert (code, f"{socket.gethostname()}/" in errors) == (1, True), errors
            await process.stop()
        async with gateway(tmp_path / "data", env=renewed):
            assert await run_to_end(*words, cwd=tmp_path, **renewed) == (
                0, "0 rows re-encrypted, 0 secrets unreadable\n", ""
            )  # fmt: skip
    code, _, errors = await run_to_end(*words, cwd=tmp_path, **renewed)
    assert (code, "the gateways cannot be asked for their keys" in errors) == (1, True), errors
