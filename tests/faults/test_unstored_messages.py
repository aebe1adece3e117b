"""G13: a NATS server that answers and stores nothing is reported alike, wherever an operator looks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from api_server import ApiClient
from gateway.cli.doctor.check import CheckState
from gateway.cli.doctor.remote_checks import check_jetstream
from gateway.config.load import load
from gateway_process import gateway
from nats_servers import NatsServer
from small_disks import fill_disk, mount_small_disk

PATIENCE = 90.0


async def is_broker_up(session: aiohttp.ClientSession) -> bool:
    """Return the metric of a gateway."""
    async with session.get("/metrics") as answer:
        return "dovecote_broker_up 1.0" in await answer.text()


async def test_a_full_disk_of_nats_is_in_the_metric_the_doctor_and_readiness(tmp_path: Path) -> None:
    """The server answers requests, so that only a message shows it: each of the three has the reason."""
    with mount_small_disk(tmp_path / "nats", 16):
        server = NatsServer(tmp_path / "nats")
        await server.start()
        try:
            await _fill_and_compare(server, tmp_path)
        finally:
            await server.kill()


async def _fill_and_compare(server: NatsServer, directory: Path) -> None:
    url = f"nats://{server.token}@127.0.0.1:{server.port}"
    env = {"DOVECOTE_NATS_URL": url, "DOVECOTE_EVENT_LOG_BYTES": "16777216"}
    settings = load(env=env, directory=directory)
    async with gateway(directory / "data", env=env) as process, process.http() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        well, _clock = await asyncio.to_thread(lambda: list(check_jetstream(settings)))
        assert (well.state, await is_broker_up(session)) == (CheckState.OK, True), well
        with (directory / "nats" / "filler").open("wb", buffering=0) as filler:
            fill_disk(filler)
            async with asyncio.timeout(PATIENCE):
                while await is_broker_up(session):
                    await mine.call("POST", "/agents/default/turns", {"input": f"!echo {'x' * 100_000}"})
                    fill_disk(filler)
        health = await mine.call("GET", "/readyz")
        assert (health.status, "NATS stores no messages" in health.body["checks"]["broker"]) == (503, True)
        failed, *_ = await asyncio.to_thread(lambda: list(check_jetstream(settings)))
        assert (failed.state, failed.subject) == (CheckState.FAILED, "jetstream")
        assert "NATS stores no messages" in failed.detail
        await process.kill()
