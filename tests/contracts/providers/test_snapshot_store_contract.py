"""Every snapshot store keeps files complete, by name, and deletes them; a missing one is an error."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from delivery.broker.connection import connect
from gateway.infra.nats_snapshots import NatsSnapshotStore
from nats_servers import TOKEN, NatsServer
from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxError
from sandbox.snapshots.local import LocalSnapshotStore
from sandbox.snapshots.port import SnapshotNotFound, SnapshotStore
from sandbox.snapshots.redis_store import (
    DAY_SECONDS,
    MAX_BYTES,
    UPLOAD_SECONDS,
    RedisSnapshotStore,
    RedisStoreOptions,
)
from sandbox.snapshots.redis_store import open_store as open_redis

LABEL = "dovecote-here-one"
LARGE = 3 * 1024 * 1024 + 7
STORES = ["local", "nats", "redis", "s3"]


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


async def _listens(socket: Path) -> bool:
    """Return whether a server accepts connections: the file is there before."""
    try:
        _, writer = await asyncio.open_unix_connection(socket)
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    writer.close()
    return True


async def _redis(directory: Path, stack: AsyncExitStack, **options: Any) -> RedisSnapshotStore:
    program = shutil.which("redis-server") or pytest.skip("no redis-server (Debian: redis-server)")
    socket = directory / "redis.sock"
    words = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(directory)]
    server = await asyncio.create_subprocess_exec(program, *words, stdout=asyncio.subprocess.DEVNULL)
    stack.push_async_callback(server.wait)
    stack.callback(server.terminate)
    async with asyncio.timeout(60):
        while not await _listens(socket):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.01)
    url = f"unix://{quote(str(socket))}"
    return await stack.enter_async_context(open_redis(RedisStoreOptions(url=url, **options)))


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SnapshotStore]:
    """Open each store against the real thing, or a server that speaks its protocol."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "nats":
                yield await _nats(tmp_path / "nats", stack)
            case "redis":
                yield await _redis(tmp_path, stack)
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


async def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """Errors of the file system are the port's: ProviderRefused, with what could not be done."""
    store, name, file = LocalSnapshotStore(tmp_path / "store"), f"{LABEL}/1-a", tmp_path / "file"
    file.write_bytes(b"content")
    (tmp_path / "store" / name).mkdir(parents=True)
    with pytest.raises(ProviderRefused, match="cannot be stored"):
        await store.put(name, file)
    with pytest.raises(ProviderRefused, match="cannot be read"):
        await store.get(name, tmp_path / "back")
    with pytest.raises(ProviderRefused, match="cannot be deleted"):
        await store.delete(name)


async def test_s3_that_is_away_is_unreachable(tmp_path: Path) -> None:
    """Errors of the SDK are folded into ours."""
    pytest.importorskip("aiobotocore")
    from sandbox.snapshots.s3 import Bucket, open_store

    bucket = Bucket(bucket="b", endpoint="http://127.0.0.1:1", access_key="test", secret_key="test")
    async with open_store(bucket) as store:
        with pytest.raises(SandboxError):
            await store.get("dovecote-here/1-a", tmp_path / "back")


async def test_snapshots_in_redis_expire_unless_they_are_read(tmp_path: Path) -> None:
    """The time begins with the upload, is renewed by each reading, and can be switched off."""
    file = tmp_path / "file"
    file.write_bytes(b"content")
    async with AsyncExitStack() as stack:
        store = await _redis(tmp_path, stack, ttl_days=2)
        await store.put(f"{LABEL}/1-a", file)
        (key,) = [one async for one in store.client.scan_iter()]
        assert DAY_SECONDS < await store.client.ttl(key) <= 2 * DAY_SECONDS
        await store.client.expire(key, 60)
        await store.get(f"{LABEL}/1-a", tmp_path / "back")
        assert await store.client.ttl(key) > DAY_SECONDS
        lasting = RedisSnapshotStore(store.client, RedisStoreOptions(url="", ttl_days=0))
        await lasting.put(f"{LABEL}/1-a", file)
        assert await store.client.ttl(key) == -1


async def test_an_interrupted_upload_to_redis_is_no_snapshot(tmp_path: Path) -> None:
    """What a killed gateway left is not listed, and expires by itself."""
    async with AsyncExitStack() as stack:
        store = await _redis(tmp_path, stack)
        await store.client.set("dovecote:upload:one", b"half", ex=UPLOAD_SECONDS)
        await store.client.set("dovecote:snapshots:dovecote-*/1-a", b"odd")
        assert list(await store.list()) == ["dovecote-*/1-a"]
        assert list(await store.list("dovecote-x")) == []
        assert list(await store.list("dovecote-*")) == ["dovecote-*/1-a"]


async def test_redis_refuses_in_our_words(tmp_path: Path) -> None:
    """A file beyond its limit, a full server and one that is away each have an error of ours."""
    file = tmp_path / "file"
    with file.open("wb") as large:
        large.truncate(MAX_BYTES + 1)
    async with AsyncExitStack() as stack:
        store = await _redis(tmp_path, stack)
        with pytest.raises(ProviderRefused, match="snapshot_limit_mb"):
            await store.put(f"{LABEL}/1-a", file)
        await store.client.config_set("maxmemory", "1mb")
        os.truncate(file, LARGE)
        with pytest.raises(ProviderRefused, match="maxmemory"):
            await store.put(f"{LABEL}/1-a", file)
        assert await store.client.keys() == [], "an upload that failed needs the memory of the next one"
    async with open_redis(RedisStoreOptions(url="redis://127.0.0.1:1/0")) as away:
        with pytest.raises(ProviderUnreachable):
            await away.list()


class _Forgetting:
    """Loses everything after the first piece, as a server does that starts again without a file."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._forgets = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def append(self, key: str, chunk: bytes) -> int:
        size: int = await self._client.append(key, chunk)
        if self._forgets:
            await self._client.flushall()
        self._forgets = False
        return size


async def test_an_upload_that_redis_lost_in_part_is_no_snapshot(tmp_path: Path) -> None:
    """It is an outage, and leaves nothing; the snapshot before it stays what it is."""
    file, name = tmp_path / "file", f"{LABEL}/1-a"
    file.write_bytes(os.urandom(LARGE))
    async with AsyncExitStack() as stack:
        store = await _redis(tmp_path, stack)
        forgetting = RedisSnapshotStore(_Forgetting(store.client), RedisStoreOptions(url=""))
        with pytest.raises(ProviderUnreachable, match="1048576 of 2097152 bytes"):
            await forgetting.put(name, file)
        assert await store.client.keys() == []
        await store.client.config_set("maxmemory", str(LARGE))
        await store.client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(SandboxError):
            await store.put(name, file)
        assert await store.client.keys() == []


async def test_connections_that_redis_closed_are_opened_again(tmp_path: Path) -> None:
    """A server that was restarted is not taken for one that does not answer."""
    file, name = tmp_path / "file", f"{LABEL}/1-a"
    file.write_bytes(b"content")
    async with AsyncExitStack() as stack:
        store = await _redis(tmp_path, stack)
        for use in (store.put(name, file), store.get(name, tmp_path / "back"), store.delete(name)):
            await store.client.client_kill_filter(_type="normal", skipme=False)
            await use


async def test_a_redis_replica_that_only_reads_still_returns_snapshots(tmp_path: Path) -> None:
    """After a fail-over sandboxes are restored; a new snapshot is an outage until there is a primary."""
    file = tmp_path / "file"
    file.write_bytes(b"content")
    async with AsyncExitStack() as stack:
        store = await _redis(tmp_path, stack)
        await store.put(f"{LABEL}/1-a", file)
        await store.client.config_set("replica-serve-stale-data", "yes")
        await store.client.replicaof("127.0.0.1", "1")
        await store.get(f"{LABEL}/1-a", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"content"
        with pytest.raises(ProviderUnreachable, match="only reads"):
            await store.put(f"{LABEL}/2-b", file)


class ShrinkingRedis(RedisSnapshotStore):
    """Deletes a snapshot after its size was read, as an expiry does."""

    def __init__(self, store: RedisSnapshotStore) -> None:
        super().__init__(_Shrinking(store.client), RedisStoreOptions(url=""))


class _Shrinking:
    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def strlen(self, key: str) -> int:
        size: int = await self._client.strlen(key)
        await self._client.unlink(key)
        return size


async def test_a_snapshot_that_vanishes_while_it_is_read_is_not_taken_for_damaged(tmp_path: Path) -> None:
    """A damaged snapshot would be given up, and the sandbox would begin empty."""
    file = tmp_path / "file"
    file.write_bytes(b"content")
    async with AsyncExitStack() as stack:
        store = await _redis(tmp_path, stack)
        await store.put(f"{LABEL}/1-a", file)
        with pytest.raises(ProviderUnreachable, match="0 of 7 bytes"):
            await ShrinkingRedis(store).get(f"{LABEL}/1-a", tmp_path / "back")
