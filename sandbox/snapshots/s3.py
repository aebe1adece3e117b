"""Store snapshots in a bucket of an S3-compatible store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from sandbox.s3 import Bucket, ObjectNotFound, open_client, translate_errors
from sandbox.snapshots.port import SnapshotNotFound, SnapshotStore

__all__ = ["Bucket", "S3SnapshotStore", "open_store"]

CHUNK = 1 << 20
PART = 16 * 1024 * 1024
"""Bytes of one part of an upload; a smaller file is sent in one piece."""


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Translate the store's errors."""
    try:
        with translate_errors(name, "snapshots"):
            yield
    except ObjectNotFound as error:
        raise SnapshotNotFound(name) from error


class S3SnapshotStore(SnapshotStore):
    """Objects below a prefix. An interrupted multipart upload leaves no object."""

    def __init__(self, client: Any, bucket: Bucket) -> None:
        self.client = client
        self._bucket = bucket

    def _key(self, name: str) -> dict[str, str]:
        return self._bucket.key(name)

    async def put(self, name: str, archive: Path) -> None:
        """Upload a file, in parts if it is large."""
        with _translate_errors(name):
            if (await asyncio.to_thread(archive.stat)).st_size <= PART:
                body = await asyncio.to_thread(archive.read_bytes)
                await self.client.put_object(**self._key(name), Body=body)
            else:
                await self._put_in_parts(self._key(name), archive)

    async def _put_in_parts(self, key: dict[str, str], archive: Path) -> None:
        upload = {**key, "UploadId": (await self.client.create_multipart_upload(**key))["UploadId"]}
        parts: list[dict[str, Any]] = []
        try:
            with archive.open("rb") as file:
                while body := await asyncio.to_thread(file.read, PART):
                    number = len(parts) + 1
                    done = await self.client.upload_part(**upload, PartNumber=number, Body=body)
                    parts.append({"PartNumber": number, "ETag": done["ETag"]})
            await self.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with suppress(Exception):  # the store may still not answer; the first error is the one to report
                await self.client.abort_multipart_upload(**upload)
            raise

    async def get(self, name: str, into: Path) -> None:
        """Download an object to a file, chunk by chunk."""
        with _translate_errors(name), into.open("wb") as file:
            found = await self.client.get_object(**self._key(name))
            async with found["Body"] as body:
                while chunk := await body.read(CHUNK):
                    await asyncio.to_thread(file.write, chunk)

    async def delete(self, name: str) -> None:
        """Delete an object."""
        with _translate_errors(name):
            await self.client.delete_object(**self._key(name))

    async def list(self, prefix: str = "") -> Sequence[str]:
        """List the objects, page by page."""
        found: list[str] = []
        with _translate_errors(prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket.bucket, Prefix=f"{self._bucket.prefix}{prefix}"
            )
            async for page in pages:
                found += [one["Key"].removeprefix(self._bucket.prefix) for one in page.get("Contents", ())]
        return sorted(found)


@asynccontextmanager
async def open_store(bucket: Bucket) -> AsyncIterator[SnapshotStore]:
    """Open a client for the bucket; raises ProviderRefused if the SDK is not installed."""
    async with open_client(bucket, "snapshots") as client:
        yield S3SnapshotStore(client, bucket)
