"""The shelf: files with their bytes, kept until their conversation or their time ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Database, Unavailable
from delivery.errors import DeliveryError, Unreachable
from delivery.events.event import new_id
from gateway.files import media_types
from gateway.files.blob_store import Absent, Depot, whole
from gateway.store.conversations import files as store
from gateway.store.conversations.files import FileRow, FileState

log = structlog.get_logger(__name__)

EVERY = 300.0
GRACE = timedelta(hours=1)
"""How long bytes are kept that no file has: their file may be about to be written down."""
_KIND = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]{0,80}")
_PAUSE = 0.1


class Shelf:
    """Keeps bytes durably before any row or event tells of them, and drops them after the last row."""

    def __init__(
        self, database: Database, depot: Depot, *, kept: timedelta, grace: timedelta = GRACE, tries: int = 20
    ) -> None:
        self._database = database
        self._depot = depot
        self._kept = kept
        self._grace = grace
        self._tries = tries

    async def put(self, content: bytes) -> str:
        """Keep bytes and return their digest; raises Unavailable, DeliveryError, OSError."""
        digest = await asyncio.to_thread(lambda: sha256(content).hexdigest())
        for _ in range(self._tries):
            async with self._database.begin() as connection:
                touched = await store.touch(connection, digest, len(content))
            if touched:
                await self._depot.put(digest, content)
                return digest
            await asyncio.sleep(_PAUSE)  # the same bytes are being dropped at this moment
        raise Unreachable("the same bytes are being dropped; try again later")

    async def keep(self, account: str, name: str, content: bytes, *, kind: str = "") -> FileRow:
        """Keep a file for a message that is still to be said; `kind` is what the sender takes it for."""
        digest = await self.put(content)
        shown = media_types.clean_name(name)
        found = media_types.media_type(content[:65536], shown)
        row = FileRow(
            id=new_id("fil"),
            account=account,
            conversation=None,
            state=FileState.UPLOADED,
            identity=digest,
            name=shown,
            type=kind if found == media_types.BINARY and _is_harmless(kind) else found,
            size=len(content),
            sha256=digest,
            created_at=utc_now(),
        )
        async with self._database.begin() as connection:
            await store.add(connection, row)
        return row

    async def find(self, file: str) -> FileRow | None:
        """Return a file that is still kept."""
        async with self._database.read() as connection:
            row = await store.by_id(connection, file)
        return row if row and row.created_at > utc_now() - self._kept else None

    async def content(self, file: str) -> bytes | None:
        """Return the bytes of a file; None when they are not kept any more."""
        row = await self.find(file)
        if row is None or row.sha256 is None:
            return None
        with suppress(Absent):
            return await whole(self._depot, row.sha256)
        return None

    async def bytes_of(self, digest: str) -> bytes | None:
        """Return bytes by their digest; None when they are not kept any more."""
        with suppress(Absent):
            return await whole(self._depot, digest)
        return None

    def open(self, digest: str) -> AsyncIterator[bytes]:
        """Yield bytes by their digest, in chunks; raises Absent before the first."""
        return self._depot.open(digest)

    async def run(self, stop: asyncio.Event) -> None:
        """Drop what is old and what nobody has any more, until stopped."""
        while not stop.is_set():
            try:
                await self.sweep(utc_now())
            except (Unavailable, DeliveryError, OSError) as error:
                log.warning("shelf.not_swept", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await stop.wait()

    async def sweep(self, now: datetime) -> None:
        """Forget files older than the retention, then drop the bytes that no file has."""
        async with self._database.begin() as connection:
            await store.forget(connection, before=now - self._kept)
        async with self._database.begin() as connection:
            idle = await store.begin_dropping(connection, now=now, grace=self._grace)
        for digest in idle:
            await self._depot.drop(digest)
            async with self._database.begin() as connection:
                await store.end_dropping(connection, digest)


def _is_harmless(kind: str) -> bool:
    """Say whether what a sender says of a file may be passed on where its content says nothing."""
    return bool(_KIND.fullmatch(kind)) and kind not in media_types.ACTIVE | media_types.IMAGES
