"""Workspaces in a bucket: two gateways that share no disk serve the same files, whichever of them dies."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gateway_process import GatewayProcess, gateway
from nats_servers import TOKEN, NatsServer
from postgres import PostgresUnavailable, postgres_cluster
from s3_servers import open_empty_store, s3_server
from sandbox.s3 import Bucket
from sandbox.workspaces.s3.store import S3WorkspaceStore

FILES = "/accounts/me/workspaces/default/files"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Serve S3 for this file."""
    with s3_server() as url:
        yield url


def _env(bucket: Bucket) -> dict[str, str]:
    place = {
        "BUCKET": bucket.bucket,
        "ENDPOINT": str(bucket.endpoint),
        "ACCESS_KEY": "test",
        "SECRET_KEY": "test",
    }
    return {
        "DOVECOTE_WORKSPACES__STORE": "s3",
        **{f"DOVECOTE_WORKSPACES__S3__{name}": value for name, value in place.items()},
    }


@asynccontextmanager
async def _shared_environment(directory: Path) -> AsyncIterator[Mapping[str, str]]:
    """Run what two gateways have in common but the bucket; yields its environment."""
    roomy = {"store_dir": str(directory / "nats" / "store"), "max_file_store": 50_000_000_000}
    broker = NatsServer(directory / "nats", settings={"jetstream": roomy})
    try:
        with postgres_cluster() as postgres:
            await broker.start()
            yield {
                "DOVECOTE_DATABASE_URL": postgres.create_database().replace("+psycopg", ""),
                "DOVECOTE_NATS_URL": broker.url.replace("nats://", f"nats://{TOKEN}@"),
                "DOVECOTE_SECRET_KEYS": "a-secret-key-of-forty-characters-or-more",
                "DOVECOTE_REPLICAS": "2",
                "DOVECOTE_LEASE_TTL": "1.5",
                "DOVECOTE_SANDBOX__LOCK_TTL": "3",
            }
            await broker.stop()
    except PostgresUnavailable as error:
        pytest.skip(f"two gateways need PostgreSQL: {error}")


async def _run_command(
    process: GatewayProcess, line: str, conversation: str | None = None
) -> tuple[str, str]:
    """Say a line in a conversation; returns the answer and the conversation."""
    async with process.http() as session:
        body = {"input": line} | ({"conversation": conversation} if conversation else {})
        async with session.post("/agents/default/turns", json=body) as taken:
            assert taken.status == 202, await taken.text()
            turn = await taken.json()
    reported = await _ended(process, turn["turnId"])
    return str(reported.get("output") or reported.get("error")), turn["conversationId"]


async def _ended(process: GatewayProcess, turn: str) -> dict[str, Any]:
    """Wait for the end of a turn."""
    async with process.http() as session, asyncio.timeout(60):
        while True:
            async with session.get(f"/status/{turn}") as shown:
                reported: dict[str, Any] = await shown.json()
            if reported["state"] in ("completed", "failed"):
                return reported
            await asyncio.sleep(0.05)


async def _get_file(process: GatewayProcess, path: str) -> bytes | int:
    async with process.http() as session, session.get(f"{FILES}/{path}") as answer:
        return await answer.read() if answer.status == 200 else answer.status


async def _wait_for_file(process: GatewayProcess, path: str, content: bytes) -> None:
    async with asyncio.timeout(40):
        while await _get_file(process, path) != content:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.05)


async def _names(process: GatewayProcess, path: str = "") -> list[str]:
    async with process.http() as session, session.get(f"{FILES}{path}") as answer:
        assert answer.status == 200, await answer.text()
        shown: dict[str, Any] = await answer.json()
        return [one["name"] for one in shown["items"]]


async def _put(process: GatewayProcess, path: str, content: bytes) -> int:
    async with process.http() as session, session.put(f"{FILES}/{path}", data=BytesIO(content)) as answer:
        return answer.status


async def test_what_a_turn_writes_on_one_gateway_is_read_on_another(endpoint: str, tmp_path: Path) -> None:
    """By HTTP, by the next turn of the conversation and by another one; and after kill -9 of the writer."""
    async with open_empty_store(endpoint) as (bucket, _), _shared_environment(tmp_path) as shared:
        env = {**shared, **_env(bucket)}
        async with gateway(tmp_path / "one", env=env) as one:
            making = (
                "mkdir deep bin; echo written on one >deep/file; echo 'echo ran' >bin/run; chmod +x bin/run"
            )
            reported, conversation = await _run_command(one, f"!{making}")
            await one.kill()
        async with gateway(tmp_path / "two", env=env) as two:
            assert await _get_file(two, "deep/file") == b"written on one\n"
            assert await _names(two) == ["bin", "deep"]
            assert await _put(two, "deep/upload", b"uploaded to two") == 204
            reported, _ = await _run_command(
                two, "!cat deep/*; ./bin/run; rm deep/file; echo two >by-two", conversation
            )
            assert "written on one" in reported
            assert "uploaded to two" in reported
            assert "ran" in reported
            assert await _get_file(two, "deep/file") == 404
            await one.start()
            reported, _ = await _run_command(one, "!ls deep; cat by-two", conversation)
            assert "upload" in reported
            assert "file" not in reported
            assert "two" in reported
            await two.stop()
            third = GatewayProcess(one.data, env=env)
            await third.start(wait=False)
            assert await third.wait_for_exit() == 1
            assert any("another instance is using" in line for line in third.log)
            await one.stop()
            await _is_finished_elsewhere(one, two, conversation)


async def _is_finished_elsewhere(one: GatewayProcess, two: GatewayProcess, conversation: str) -> None:
    """Kill one gateway after a turn's command and before its end is published; the other publishes it."""
    await one.start(env={"DOVECOTE_FAULT_POINT": "turn.settle.before_commit"})
    async with one.http() as session:
        line = {"input": "!date +%N >done-on-one", "conversation": conversation}
        async with session.post("/agents/default/turns", json=line) as taken:
            turn = (await taken.json())["turnId"]
    await one.wait_for_exit()
    (made,) = (one.data / "workspaces").glob("*/done-on-one")
    await two.start()
    assert (await _ended(two, turn))["state"] == "completed"
    assert await _get_file(two, "done-on-one") == made.read_bytes()
    assert made.read_text().strip() in (await _run_command(two, "!cat done-on-one", conversation))[0]


async def test_a_gateway_alone_keeps_its_workspaces_in_a_bucket(endpoint: str, tmp_path: Path) -> None:
    """What a directory held before goes there; a deleted workspace leaves nothing, a lost disk costs none."""
    async with open_empty_store(endpoint) as (bucket, store):
        data = tmp_path / "data"
        async with gateway(data) as process:
            assert await _put(process, "from-before", b"of the directory") == 204
            await process.stop()
            await process.start(env=_env(bucket))
            await _wait_for_file(process, "from-before", b"of the directory")
            assert "of the directory" in (await _run_command(process, "!cat from-before; echo more >more"))[0]
            (workspace,) = (data / "workspaces").iterdir()
            assert await _get_file(process, "more") == b"more\n"
            await _run_command(process, "!& echo by a job >by-job")
            await _wait_for_file(process, "by-job", b"by a job\n")
            await process.kill()
            shutil.rmtree(workspace)
            await process.start(env=_env(bucket))
            assert "more" in (await _run_command(process, "!cat more"))[0]
            await _deletes_all(process, store, bucket)


async def test_a_bucket_that_refuses_keeps_the_gateway_from_starting(endpoint: str, tmp_path: Path) -> None:
    """The line names the wrong setting and the remedy; a temporary outage is waited for."""
    async with open_empty_store(endpoint) as (bucket, _):
        env = _env(bucket)
        process = GatewayProcess(
            tmp_path / "data", env=env | {"DOVECOTE_WORKSPACES__S3__BUCKET": "not-there"}
        )
        await process.start(wait=False)
        assert await process.wait_for_exit() == 1
        (line,) = [line for line in process.log if "not-there" in line]
        assert "workspaces.s3.bucket" in line
        assert "create the bucket" in line
        away = {"DOVECOTE_WORKSPACES__S3__ENDPOINT": "http://127.0.0.1:1"}
        async with gateway(tmp_path / "data", env=env | away) as waiting:
            async with waiting.http() as session, session.get(f"{FILES}/file") as answer:
                assert answer.status == 503
            assert await waiting.kill(signal.SIGTERM) == 0


@pytest.mark.parametrize("point", ["workspace.carry.before_store", "workspace.carry.after_store"])
async def test_a_gateway_killed_while_it_carries_carries_again(
    point: str, endpoint: str, tmp_path: Path
) -> None:
    """Nothing was reported as done by then; afterwards the bucket has the command's files."""
    async with (
        open_empty_store(endpoint) as (bucket, store),
        gateway(tmp_path / "data", env=_env(bucket)) as process,
    ):
        await _run_command(process, "!echo old >changed; echo x >removed")
        await process.stop()
        await process.start(env={"DOVECOTE_FAULT_POINT": point})
        async with process.http() as session:
            line = {"input": "!echo new >changed; rm removed; date +%N >>made"}
            async with session.post("/agents/default/turns", json=line) as taken:
                assert taken.status == 202
        await process.wait_for_exit()
        await process.start()
        await _wait_for_file(process, "changed", b"new\n")
        assert await _get_file(process, "removed") == 404
        (made,) = (tmp_path / "data" / "workspaces").glob("*/made")
        await _wait_for_file(process, "made", made.read_bytes())
        assert await _count(store, bucket) == 2


async def _deletes_all(process: GatewayProcess, store: S3WorkspaceStore, bucket: Bucket) -> None:
    """Delete a second workspace with a file in it, and check that the bucket has the first one alone."""
    async with process.http() as session:
        async with session.post("/accounts/me/workspaces", json={"name": "second"}) as made:
            assert made.status == 201
        url = "/accounts/me/workspaces/second"
        async with session.put(f"{url}/files/a/b", data=BytesIO(b"x")) as answer:
            assert answer.status == 204
        assert await _count(store, bucket) == 4
        async with session.delete(url) as answer:
            assert answer.status == 204
    assert await _count(store, bucket) == 3


async def _count(store: S3WorkspaceStore, bucket: Bucket) -> int:
    found = await store.client.list_objects_v2(Bucket=bucket.bucket)
    return sum("/workspaces/" in one["Key"] for one in found.get("Contents", ()))
