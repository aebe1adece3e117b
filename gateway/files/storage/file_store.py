"""The file store: files with their bytes, stored until their conversation is deleted or they expire."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256

from delivery.background import log_errors
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.errors import BrokerUnreachable
from delivery.events.event import new_id
from gateway.files import media_types
from gateway.files.storage.blob_store import BlobNotFound, BlobStore, read_all
from gateway.files.storage.storage_quota import StorageQuota
from gateway.store.conversations import files as store
from gateway.store.conversations import uploads
from gateway.store.conversations.files import FileRow, FileState

SWEEP_SECONDS = 300.0
GRACE_PERIOD = timedelta(hours=1)
"""How long blobs without a file row are stored; their row may be about to be inserted."""
UPLOAD_TIME = timedelta(hours=24)
"""How long the parts of an upload are stored."""
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]{0,80}")
_RETRY_SECONDS = 0.1


class FileStore:
    """Stores blobs before any row or event refers to them, and deletes them after their last row."""

    def __init__(
        self,
        database: Database,
        blob_store: BlobStore,
        *,
        retention: timedelta,
        quota: StorageQuota | None = None,
        grace: timedelta = GRACE_PERIOD,
        tries: int = 20,
        interval: float = SWEEP_SECONDS,
    ) -> None:
        self._database = database
        self._blob_store = blob_store
        self._retention = retention
        self._quota = quota
        self._grace = grace
        self._swept_to = ""
        self._tries = tries
        self._interval = interval

    async def write_blob(self, account: str, content: bytes) -> str:
        """Store bytes for an account and return their digest.

        Raises StorageFull, DatabaseUnavailable, DeliveryError, OSError.
        """
        if self._quota is None:
            return await self._write_blob(content)
        async with self._quota.reserve(account, len(content)):
            return await self._write_blob(content)

    async def _write_blob(self, content: bytes) -> str:
        digest = await asyncio.to_thread(lambda: sha256(content).hexdigest())
        for _ in range(self._tries):
            async with self._database.begin() as connection:
                touched = await store.touch(connection, digest, len(content))
            if touched:
                await self._blob_store.write(digest, content)
                return digest
            await asyncio.sleep(_RETRY_SECONDS)  # the same blob is being deleted at this moment
        raise BrokerUnreachable("the same content is being deleted; try again later")

    async def save(
        self,
        account: str,
        name: str,
        content: bytes,
        *,
        stated_type: str = "",
        lifetime: timedelta | None = None,
        purpose: str | None = None,
    ) -> FileRow:
        """Store an upload for a later message; raises StorageFull and what `write_blob` raises.

        `stated_type` is the media type that the sender claims. The file is deleted after its `lifetime`, or
        after the retention if that is shorter. `purpose` is what the client said that it is for.
        """
        digest = await self.write_blob(account, content)
        shown = media_types.sanitize_name(name)
        found = media_types.detect_media_type(content[:65536], shown)
        now = utc_now()
        row = FileRow(
            id=new_id("fil"),
            account=account,
            conversation=None,
            state=FileState.UPLOADED,
            identity=digest,
            name=shown,
            type=stated_type if found == media_types.BINARY and _is_harmless(stated_type) else found,
            size=len(content),
            sha256=digest,
            created_at=now,
            expires_at=now + min(lifetime, self._retention) if lifetime else None,
            purpose=purpose,
        )
        async with self._database.begin() as connection:
            await store.add(connection, row)
        return row

    async def get(self, file: str) -> FileRow | None:
        """Return a stored file, or None."""
        async with self._database.read() as connection:
            row = await store.get_by_id(connection, file)
        now = utc_now()
        if row is None or row.created_at <= now - self._retention:
            return None
        return row if row.expires_at is None or row.expires_at > now else None

    async def read(self, file: str) -> bytes | None:
        """Return the bytes of a file; None if they were deleted."""
        row = await self.get(file)
        if row is None or row.sha256 is None:
            return None
        with suppress(BlobNotFound):
            return await read_all(self._blob_store, row.sha256)
        return None

    async def read_blob(self, digest: str) -> bytes | None:
        """Return bytes by their digest; None if they were deleted."""
        with suppress(BlobNotFound):
            return await read_all(self._blob_store, digest)
        return None

    def read_chunks(self, digest: str) -> AsyncIterator[bytes]:
        """Yield bytes by their digest in chunks; raises BlobNotFound before the first."""
        return self._blob_store.read_chunks(digest)

    async def run(self, stop: asyncio.Event) -> None:
        """Delete expired files and blobs without a file, until stopped."""
        while not stop.is_set():
            with log_errors("files.sweep"):
                await self.sweep(utc_now())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await stop.wait()

    async def sweep(self, now: datetime) -> None:
        """Delete files older than the retention, then blobs without a file, some of them in each pass."""
        async with self._database.begin() as connection:
            await store.delete_before(connection, before=now - self._retention)
            await uploads.delete_open_before(connection, now - UPLOAD_TIME)
            await uploads.delete_expired(connection, before=now)
        async with self._database.begin() as connection:
            idle, self._swept_to = await store.begin_delete(
                connection, now=now, grace=self._grace, after=self._swept_to
            )
        for digest in idle:
            await self._blob_store.delete(digest)
            async with self._database.begin() as connection:
                await store.end_delete(connection, digest)


def _is_harmless(stated_type: str) -> bool:
    """Return whether a claimed media type may be used if the content gives none."""
    return (
        bool(_MEDIA_TYPE.fullmatch(stated_type))
        and stated_type not in media_types.ACTIVE_CONTENT | media_types.IMAGES
    )
