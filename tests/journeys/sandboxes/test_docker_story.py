"""A gateway whose sandboxes are containers: a command, a job that outlives the gateway, sleep and waking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import docker_engine
from docker_rig import outside_container
from gateway_process import GatewayProcess, gateway
from sandbox.labels import key_of

TIMEOUT_SECONDS = 40.0


def outside_name(directory: Path) -> str:
    """Return the name of the test's container that another program runs."""
    return f"somebody-elses-{key_of(str(directory))}"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Return a gateway on the tests' engine; its containers are removed afterwards."""
    engine = docker_engine.shared_engine()
    env = {
        "SANDBOX_PROVIDER": "docker",
        "DOCKER_HOST": engine.host,
        "DOVECOTE_SANDBOX__DOCKER__IMAGE": docker_engine.IMAGE,
        "DOVECOTE_SANDBOX__SNAPSHOTS": "local",
        "DOVECOTE_SANDBOX__REAP_INTERVAL": "0.2",
        "DOVECOTE_SANDBOX__ALLOW__EXTERNAL": f"docker:{outside_name(tmp_path)}",
    }
    async with gateway(tmp_path / "data", env=env) as process:
        yield process
    for one in json.loads(engine.call("GET", "/containers/json?all=1")):
        if any(mount["Source"].startswith(str(tmp_path)) for mount in one["Mounts"]):
            engine.call("DELETE", f"/containers/{one['Id']}?force=1")


async def list_sandboxes(session: aiohttp.ClientSession) -> list[dict[str, Any]]:
    """Return the live sandboxes."""
    async with session.get("/sandboxes") as answer:
        return list((await answer.json())["items"])


async def ended(session: aiohttp.ClientSession, item: str) -> dict[str, Any]:
    """Return a turn or job once it has ended."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            async with session.get(f"/status/{item}") as answer:
                reported = dict(await answer.json())
            if reported["state"] in {"completed", "failed", "cancelled", "stopped", "lost"}:
                return reported
            await asyncio.sleep(0.05)


async def turn(session: aiohttp.ClientSession, line: str) -> dict[str, Any]:
    """Have the shell agent do a line; returns the ended turn."""
    body = {"input": line, "conversation": "one"}
    async with session.post("/agents/default/turns", json=body) as answer:
        taken = await answer.json()
    return await ended(session, taken["turnId"])


async def deleted(session: aiohttp.ClientSession, sandbox: str) -> bool:
    """Delete a live sandbox, once nothing uses it any more."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            async with session.delete(f"/sandboxes/{sandbox}") as answer:
                if answer.status != HTTPStatus.CONFLICT:
                    return answer.status == HTTPStatus.NO_CONTENT
            await asyncio.sleep(0.05)


async def change_record(session: aiohttp.ClientSession, **config: object) -> int:
    """Change the sandbox record; returns for how many jobs the change waits."""
    async with session.patch("/accounts/me/sandboxes/default", json={"config": config}) as answer:
        assert answer.status == 200, await answer.text()
        return int((await answer.json())["waiting_jobs"])


async def only_job(session: aiohttp.ClientSession) -> str:
    """Return the id of the only job."""
    async with session.get("/jobs") as answer:
        (job,) = (await answer.json())["items"]
    return str(job.get("resultId") or job["id"])


async def test_a_jobs_result_comes_home_from_a_container(process: GatewayProcess) -> None:
    """A job goes on while the gateway is dead by kill -9 and its record is changed; its result arrives."""
    async with process.http() as session:
        assert "in /mnt/workspaces/" in (await turn(session, '!echo "in $PWD" | tee note'))["output"]
        await turn(session, "!&while ! test -e go; do sleep 0.05; done; cat note; exit 3")
        job = await only_job(session)
    await process.kill()
    process.env["DOVECOTE_SANDBOX__DOCKER__READ_ONLY_ROOT"] = "true"
    await process.start()
    async with process.http() as session:
        assert [one["waiting_jobs"] for one in await list_sandboxes(session)] == [1], "the settings changed"
        assert await change_record(session, memoryLimit=300) == 1
        await turn(session, "!touch go")
        reported = await ended(session, job)
        (live,) = await list_sandboxes(session)
        assert (live["boot"], live["waiting_jobs"]) == (1, 0)
    assert (reported["state"], reported["exit_code"]) == ("failed", 3)
    assert "in /mnt/workspaces/" in reported["output"]


async def test_a_reserved_container_sleeps_and_wakes(process: GatewayProcess) -> None:
    """Idle it is stopped, used it wakes, and HOME is what it was."""
    async with process.http() as session:
        config = {"lifecycle": {"idleTimeoutSeconds": 1}, "persistent": True}
        async with session.patch("/accounts/me/sandboxes/default", json={"config": config}) as answer:
            assert answer.status == 200, await answer.text()
        await turn(session, "!echo kept > ~/note")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not (await list_sandboxes(session))[0]["paused"]:  # noqa: ASYNC110 - it happens in the gateway
                await asyncio.sleep(0.05)
        assert "kept" in (await turn(session, "!cat ~/note"))["output"]


async def test_an_external_container_is_used_and_kept(process: GatewayProcess, tmp_path: Path) -> None:
    """A job in it survives a kill of the gateway; deleting the record leaves the container as it is."""
    async with outside_container(docker_engine.shared_engine(), outside_name(tmp_path)) as outside:
        before = await outside.state()
        async with process.http() as session:
            config = {"provider": "docker", "external": outside.name}
            async with session.post("/accounts/me/sandboxes", json={"name": "x", "config": config}) as answer:
                assert answer.status == 201, await answer.text()
            async with session.patch(
                "/accounts/me/agents/default", json={"config": {"sandbox": "x"}}
            ) as answer:
                assert answer.status == 200, await answer.text()
            assert "uid=1000" in (await turn(session, "!id; echo work >note"))["output"]
            await turn(session, "!&while ! test -e go; do sleep 0.05; done; cat note; exit 3")
            job = await only_job(session)
        await process.kill()
        await process.start()
        async with process.http() as session:
            await turn(session, "!touch go")
            reported = await ended(session, job)
            assert (reported["state"], reported["exit_code"]) == ("failed", 3)
            assert "work" in reported["output"]
            (live,) = await list_sandboxes(session)
            assert await deleted(session, live["id"])
        assert await outside.state() == before
