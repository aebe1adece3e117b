"""Bases in the bucket itself: whichever gateway carries next for a sandbox elsewhere knows them."""

from __future__ import annotations

from typing import Any

from sandbox.s3 import Absent, Bucket, content_of, folded
from sandbox.workspaces.baselines import Bases, dump, name_of, parse
from sandbox.workspaces.sync_plan import Base

PLACE = "carried/"
LARGEST = 64 * 1024 * 1024
_WHAT = "workspaces"


class BucketBases(Bases):
    """An object for each key."""

    def __init__(self, client: Any, bucket: Bucket) -> None:
        self._client = client
        self._bucket = bucket

    async def find(self, key: str) -> Base | None:
        """Get the object."""
        try:
            with folded(key, _WHAT):
                answer = await self._client.get_object(**self._key(key))
                return parse(await content_of(answer, LARGEST))
        except Absent:
            return None

    async def keep(self, key: str, base: Base) -> None:
        """Put the object."""
        with folded(key, _WHAT):
            await self._client.put_object(**self._key(key), Body=dump(base))

    async def forget(self, key: str) -> None:
        """Delete the object."""
        with folded(key, _WHAT):
            await self._client.delete_object(**self._key(key))

    def _key(self, key: str) -> dict[str, str]:
        return self._bucket.key(PLACE + name_of(key))
