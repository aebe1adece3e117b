"""Snapshots in an object store of the broker: for replicas that have nothing else in common."""

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

from delivery.broker.connection import Link
from sandbox.errors import Unreachable
from sandbox.snapshots.port import Missing, Store

BUCKET = "dovecote-snapshots"
CHUNK = 512 * 1024
PATIENCE = 600.0
"""Seconds for one snapshot: a piece that got lost is waited for no longer."""


@asynccontextmanager
async def _folded(name: str) -> AsyncIterator[None]:
    """Say in our own words what the broker refuses."""
    try:
        yield
    except (ObjectNotFoundError, ObjectDeletedError, NotFoundError) as error:
        raise Missing(name) from error
    except (NatsError, TimeoutError, OSError) as error:
        raise Unreachable(f"the store of snapshots does not answer: {error}") from error


class NatsStore(Store):
    """Objects in one bucket, in pieces of half a megabyte."""

    def __init__(self, bucket: ObjectStore) -> None:
        self._bucket = bucket

    @classmethod
    async def open(cls, link: Link) -> Self:
        """Find the bucket, or make it."""
        jetstream = link.jetstream
        async with _folded(BUCKET):
            try:
                found = await jetstream.object_store(BUCKET)
            except BucketNotFoundError:
                found = await jetstream.create_object_store(BUCKET, config=ObjectStoreConfig(bucket=BUCKET))
        return cls(found)

    async def put(self, name: str, archive: Path) -> None:
        """Send a file in pieces."""
        meta = ObjectMeta(name=name, options=ObjectMetaOptions(max_chunk_size=CHUNK))
        async with _folded(name), asyncio.timeout(PATIENCE):
            with archive.open("rb") as file:
                await self._bucket.put(name, file, meta=meta)

    async def get(self, name: str, into: Path) -> None:
        """Take the pieces into a file; the client compares their hash with what was sent."""
        async with _folded(name), asyncio.timeout(PATIENCE):
            with into.open("wb") as file:
                await self._bucket.get(name, writeinto=file)

    async def drop(self, name: str) -> None:
        """Delete an object; one that is not there is gone already."""
        try:
            async with _folded(name):
                await self._bucket.delete(name)
        except Missing:
            await asyncio.sleep(0)

    async def names(self, prefix: str = "") -> Sequence[str]:
        """List the objects."""
        try:
            async with _folded(prefix):
                found = await self._bucket.list(ignore_deletes=True)
        except Missing:
            return []
        names = (one.name for one in found if one.name and not one.deleted)
        return sorted(name for name in names if name.startswith(prefix))
