"""Store baselines in the workspace's bucket, so that every gateway finds them."""

from __future__ import annotations

from typing import Any

from sandbox.s3 import Bucket, ObjectNotFound, read_body, translate_errors
from sandbox.workspaces.baselines import BaselineStore, decode, encode, file_name
from sandbox.workspaces.sync_plan import SyncBaseline

PREFIX = "carried/"
MAX_BYTES = 64 * 1024 * 1024
_STORE = "workspaces"


class S3BaselineStore(BaselineStore):
    """One object per key."""

    def __init__(self, client: Any, bucket: Bucket) -> None:
        self._client = client
        self._bucket = bucket

    async def get(self, key: str) -> SyncBaseline | None:
        """Get the object."""
        try:
            with translate_errors(key, _STORE):
                response = await self._client.get_object(**self._key(key))
                return decode(await read_body(response, MAX_BYTES))
        except ObjectNotFound:
            return None

    async def save(self, key: str, baseline: SyncBaseline) -> None:
        """Put the object."""
        with translate_errors(key, _STORE):
            await self._client.put_object(**self._key(key), Body=encode(baseline))

    async def delete(self, key: str) -> None:
        """Delete the object."""
        with translate_errors(key, _STORE):
            await self._client.delete_object(**self._key(key))

    def _key(self, key: str) -> dict[str, str]:
        return self._bucket.key(PREFIX + file_name(key))
