"""Every snapshot store keeps files complete, by name, and deletes them; a missing one is an error."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from delivery.broker.connection import connect
from gateway.infra.nats_snapshots import NatsSnapshotStore
from nats_servers import TOKEN, NatsServer
from sandbox.errors import SandboxError
from sandbox.snapshots.local import LocalSnapshotStore
from sandbox.snapshots.port import SnapshotNotFound, SnapshotStore

LABEL = "dovecote-here-one"
LARGE = 3 * 1024 * 1024 + 7
STORES = ["local", "nats", "s3"]


async def _nats(directory: Path, stack: AsyncExitStack) -> SnapshotStore:
    server = NatsServer(directory)
    await server.start()
    stack.push_async_callback(server.stop)
    nats_connection = await stack.enter_async_context(connect(server.url, token=TOKEN))
    return await NatsSnapshotStore.open(nats_connection)


async def _s3(stack: AsyncExitStack) -> SnapshotStore:
    pytest.importorskip("aiobotocore")
    servers = pytest.importorskip("moto.server")
    from sandbox.snapshots.s3 import Bucket, S3SnapshotStore, open_store

    server = servers.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    stack.callback(server.stop)
    host, port = server.get_host_and_port()
    bucket = Bucket(
        bucket=uuid.uuid4().hex, endpoint=f"http://{host}:{port}", access_key="test", secret_key="test"
    )
    store = await stack.enter_async_context(open_store(bucket))
    assert isinstance(store, S3SnapshotStore)
    await store.client.create_bucket(Bucket=bucket.bucket)
    return store


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SnapshotStore]:
    """Open each store against the real thing, or a server that speaks its protocol."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "nats":
                yield await _nats(tmp_path / "nats", stack)
            case "s3":
                yield await _s3(stack)
            case _:
                yield LocalSnapshotStore(tmp_path / "store")


async def test_what_is_put_is_got(store: SnapshotStore, tmp_path: Path) -> None:
    """Byte for byte, however large."""
    file, back = tmp_path / "file", tmp_path / "back"
    for size in (0, 10, LARGE):
        file.write_bytes(os.urandom(size))
        await store.put(f"{LABEL}/1-{size}", file)
        await store.get(f"{LABEL}/1-{size}", back)
        assert back.read_bytes() == file.read_bytes()


async def test_names_are_listed_and_dropped(store: SnapshotStore, tmp_path: Path) -> None:
    """By what they begin with; dropping twice is no error, and what is dropped is missing."""
    assert list(await store.list()) == []
    file = tmp_path / "file"
    file.write_bytes(b"content")
    for name in (f"{LABEL}/2-b", f"{LABEL}/1-a", "dovecote-there/1-c"):
        await store.put(name, file)
    assert list(await store.list(f"{LABEL}/")) == [f"{LABEL}/1-a", f"{LABEL}/2-b"]
    for _ in range(2):
        await store.delete(f"{LABEL}/1-a")
    assert list(await store.list()) == [f"{LABEL}/2-b", "dovecote-there/1-c"]
    with pytest.raises(SnapshotNotFound):
        await store.get(f"{LABEL}/1-a", tmp_path / "back")


async def test_s3_that_is_away_is_unreachable(tmp_path: Path) -> None:
    """Errors of the SDK are folded into ours."""
    pytest.importorskip("aiobotocore")
    from sandbox.snapshots.s3 import Bucket, open_store

    bucket = Bucket(bucket="b", endpoint="http://127.0.0.1:1", access_key="test", secret_key="test")
    async with open_store(bucket) as store:
        with pytest.raises(SandboxError):
            await store.get("dovecote-here/1-a", tmp_path / "back")
