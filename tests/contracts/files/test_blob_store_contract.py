"""Every blob store returns bytes as they were written, complete or not at all, until they are deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from delivery.broker.connection import connect
from gateway.files.storage.blob_store import (
    CHUNK_BYTES,
    BlobNotFound,
    BlobStore,
    DirectoryBlobStore,
    read_all,
)
from gateway.files.storage.nats_blob_store import NatsBlobStore
from nats_servers import nats_server


@pytest.fixture(params=["directory", "shared"])
async def blob_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BlobStore]:
    """Open every kind of blob store."""
    if request.param == "directory":
        yield DirectoryBlobStore(tmp_path / "files")
        return
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        yield NatsBlobStore(await stack.enter_async_context(connect(server.url, token=server.token)))


def digest_of(content: bytes) -> str:
    """Return the digest under which a content is stored."""
    return sha256(content).hexdigest()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7])
async def test_bytes_come_back_in_bounded_chunks(blob_store: BlobStore, size: int) -> None:
    """Contents of any size are stored, repeatedly too."""
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for _ in range(2):
        await blob_store.write(digest_of(content), content)
    chunks = [chunk async for chunk in blob_store.read_chunks(digest_of(content))]
    assert b"".join(chunks) == content
    assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)


async def test_what_is_not_there_is_absent(blob_store: BlobStore) -> None:
    """An unknown digest and a deleted one are distinguished from an empty file."""
    await blob_store.delete(digest_of(b"x"))
    await blob_store.write(digest_of(b"x"), b"x")
    assert await read_all(blob_store, digest_of(b"x")) == b"x"
    await blob_store.delete(digest_of(b"x"))
    for digest in (digest_of(b"x"), digest_of(b"y")):
        with pytest.raises(BlobNotFound):
            await read_all(blob_store, digest)


async def test_dropped_bytes_can_be_kept_again(blob_store: BlobStore) -> None:
    """Deleting removes nothing but the bytes."""
    for _ in range(2):
        await blob_store.write(digest_of(b"again"), b"again")
        assert await read_all(blob_store, digest_of(b"again")) == b"again"
        await blob_store.delete(digest_of(b"again"))


async def test_another_replica_reads_what_one_kept(tmp_path: Path) -> None:
    """What is shared is shared; half a file is none."""
    async with nats_server(tmp_path / "nats") as server, AsyncExitStack() as stack:
        links = [await stack.enter_async_context(connect(server.url, token=server.token)) for _ in range(2)]
        one, two = (NatsBlobStore(nats_connection) for nats_connection in links)
        await one.write(digest_of(b"mine"), b"mine")
        assert await read_all(two, digest_of(b"mine")) == b"mine"
        await links[0].publish(f"file.{digest_of(b'half')}.0", b"ha")
        with pytest.raises(BlobNotFound):
            await read_all(two, digest_of(b"half"))
