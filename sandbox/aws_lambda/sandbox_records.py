"""Records of sandboxes in the bucket: one object for each label, with the sandbox's id as its content."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

from sandbox.errors import SandboxGone
from sandbox.model import SandboxId
from sandbox.s3 import Bucket, ObjectNotFound, put_if_absent, read_body, translate_errors

STORE = "sandboxes"
CONCURRENCY = 16
_DIRECTORY = "labels/"
_SEPARATOR = "x"
_MAX_ID_BYTES = 1024


class SandboxRecords:
    """The sandboxes that exist.

    An id is the label in hexadecimal and a random part. It is also the name of the sandbox's directory on the
    file system: commands cannot list those names and cannot guess them.
    """

    def __init__(self, objects: Any, bucket: Bucket) -> None:
        self._objects = objects
        self._bucket = bucket

    async def create(self, label: str) -> SandboxId:
        """Return the id of the label's sandbox; record a new one if there is none."""
        fresh = SandboxId(f"{label.encode().hex()}{_SEPARATOR}{secrets.token_hex(16)}")
        if await put_if_absent(self._objects, self._key(label), fresh.encode(), STORE):
            return fresh
        return await self._find(label) or await self.create(label)

    async def check(self, sandbox_id: SandboxId) -> None:
        """Raise SandboxGone if a sandbox does not exist."""
        label = _label_of(sandbox_id)
        if label is None or await self._find(label) != sandbox_id:
            raise SandboxGone(f"{sandbox_id!r} is not a sandbox of this provider")

    async def delete(self, sandbox_id: SandboxId) -> None:
        """Delete the record of a sandbox. Idempotent."""
        label = _label_of(sandbox_id)
        if label is not None and await self._find(label) == sandbox_id:
            with translate_errors(label, STORE):
                await self._objects.delete_object(**self._key(label))

    async def list(self, label_prefix: str) -> Sequence[tuple[SandboxId, str]]:
        """Return (id, label) of the sandboxes whose label begins with the prefix."""
        start = self._bucket.key(_DIRECTORY)["Key"]
        labels: list[str] = []
        with translate_errors(label_prefix, STORE):
            pages = self._objects.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket.bucket, Prefix=self._key(label_prefix)["Key"]
            )
            async for page in pages:
                labels += [unquote(str(one["Key"]).removeprefix(start)) for one in page.get("Contents", ())]
        places = asyncio.Semaphore(CONCURRENCY)

        async def find(label: str) -> SandboxId | None:
            async with places:
                return await self._find(label)

        found = await asyncio.gather(*map(find, labels))
        return sorted((one, label) for one, label in zip(found, labels, strict=True) if one is not None)

    def _key(self, label: str) -> dict[str, str]:
        return self._bucket.key(f"{_DIRECTORY}{quote(label, safe='')}")

    async def _find(self, label: str) -> SandboxId | None:
        """Return the id of the label's sandbox."""
        try:
            with translate_errors(label, STORE):
                answer = await self._objects.get_object(**self._key(label))
                return SandboxId((await read_body(answer, _MAX_ID_BYTES)).decode("utf-8", "replace"))
        except ObjectNotFound:
            return None


def _label_of(sandbox_id: str) -> str | None:
    """Return the label in an id; None for a text that is no id of ours."""
    try:
        return bytes.fromhex(sandbox_id.partition(_SEPARATOR)[0]).decode()
    except ValueError:
        return None
