"""Snapshots in an object store of the broker, for replicas without a shared directory or bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from nats.errors import Error as NatsError
from nats.js.api import ObjectMeta, ObjectMetaOptions, ObjectStoreConfig
from nats.js.errors import BucketNotFoundError, NotFoundError, ObjectDeletedError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from delivery.broker.connection import NatsConnection
from sandbox.errors import ProviderUnreachable
from sandbox.snapshots.port import SnapshotNotFound, SnapshotStore

BUCKET = "dovecote-snapshots"
CHUNK_BYTES = 512 * 1024
TRANSFER_TIMEOUT = 600.0
"""Seconds for one snapshot, because a lost chunk would be awaited for ever."""


@asynccontextmanager
async def _translate_errors(name: str) -> AsyncIterator[None]:
    """Translate the broker's errors into sandbox errors."""
    try:
        yield
    except (ObjectNotFoundError, ObjectDeletedError, NotFoundError) as error:
        raise SnapshotNotFound(name) from error
    except (NatsError, TimeoutError, OSError) as error:
        raise ProviderUnreachable(f"the store of snapshots does not answer: {error}") from error


class NatsSnapshotStore(SnapshotStore):
    """Objects in one bucket, in chunks of half a megabyte."""

    def __init__(self, bucket: ObjectStore) -> None:
        self._bucket = bucket

    @classmethod
    async def open(cls, link: NatsConnection) -> Self:
        """Open the bucket; creates it when it is missing."""
        jetstream = link.jetstream
        async with _translate_errors(BUCKET):
            try:
                found = await jetstream.object_store(BUCKET)
            except BucketNotFoundError:
                found = await jetstream.create_object_store(BUCKET, config=ObjectStoreConfig(bucket=BUCKET))
        return cls(found)

    async def put(self, name: str, archive: Path) -> None:
        """Send a file in chunks."""
        meta = ObjectMeta(name=name, options=ObjectMetaOptions(max_chunk_size=CHUNK_BYTES))
        async with _translate_errors(name), asyncio.timeout(TRANSFER_TIMEOUT):
            with archive.open("rb") as file:
                await self._bucket.put(name, file, meta=meta)

    async def get(self, name: str, into: Path) -> None:
        """Receive an object into a file; the client verifies its hash."""
        async with _translate_errors(name), asyncio.timeout(TRANSFER_TIMEOUT):
            with into.open("wb") as file:
                await self._bucket.get(name, writeinto=file)

    async def delete(self, name: str) -> None:
        """Delete an object; idempotent."""
        try:
            async with _translate_errors(name):
                await self._bucket.delete(name)
        except SnapshotNotFound:
            await asyncio.sleep(0)

    async def list(self, prefix: str = "") -> Sequence[str]:
        """List the objects."""
        try:
            async with _translate_errors(prefix):
                found = await self._bucket.list(ignore_deletes=True)
        except SnapshotNotFound:
            return []
        names = (one.name for one in found if one.name and not one.deleted)
        return sorted(name for name in names if name.startswith(prefix))
