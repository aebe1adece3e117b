"""A server on loopback that speaks S3, and buckets in it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from sandbox.s3 import Bucket, open_client
from sandbox.workspaces.s3.store import S3WorkspaceStore


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve S3, in a thread of this process; yields its URL."""
    pytest.importorskip("aiobotocore")
    servers = pytest.importorskip("moto.server")
    server = servers.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@asynccontextmanager
async def open_empty_store(
    endpoint: str, prefix: str = "dovecote/"
) -> AsyncIterator[tuple[Bucket, S3WorkspaceStore]]:
    """Make a bucket, and open a store of workspaces in it."""
    bucket = Bucket(
        bucket=f"b-{uuid.uuid4().hex}",
        prefix=prefix,
        endpoint=endpoint,
        access_key="test",
        secret_key="test",
    )
    async with open_client(bucket, "workspaces") as client:
        await client.create_bucket(Bucket=bucket.bucket)
        yield bucket, S3WorkspaceStore(client, bucket)
