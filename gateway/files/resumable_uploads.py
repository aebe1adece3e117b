"""Uploads to workspaces that arrive in parts, so that a lost connection costs one part.

Each part is stored with its offset as its id. Of two parts at one offset the first is kept, on any number of
replicas. Parts count against the account's storage. The file appears in the workspace with its last part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.files.storage.file_store import UPLOAD_TIME, FileStore
from gateway.store.conversations import uploads as store
from gateway.store.conversations.files import FileRow, FileState

MAX_OPEN = 20
"""Uploads of one account that are not complete."""

MAX_PART_BYTES = 16 * 1024 * 1024
MIN_PART_BYTES = 64 * 1024
"""Of every part but the last; it bounds how many parts there are."""


class TooManyUploads(Exception):
    """The account has too many uploads that are not complete."""


class PartMismatch(Exception):
    """A part does not continue the upload, which continues at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the next byte of the upload is {offset}")
        self.offset = offset


class ContentMismatch(Exception):
    """The parts together are not the content that was announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An upload to the namespace of a workspace, the bytes that have arrived, and all it will have."""

    id: str
    workspace: str
    path: str
    size: int
    offset: int
    sha256: str
    expires_at: datetime

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.offset == self.size


class ResumableUploads:
    """Begins uploads, takes their parts, and reads them when they are complete."""

    def __init__(self, database: Database, file_store: FileStore) -> None:
        self._database = database
        self._file_store = file_store

    async def begin(self, account: str, workspace: str, path: str, *, size: int, digest: str = "") -> Upload:
        """Begin an upload; raises TooManyUploads."""
        row = FileRow(
            id=new_id("upl"),
            account=account,
            conversation=None,
            state=FileState.UPLOADING,
            identity=sha256(f"{workspace}\n{path}".encode()).hexdigest(),
            name=workspace,
            type="application/octet-stream",
            size=0,
            sha256=None,
            created_at=utc_now(),
            version=str(size),
            path=path,
            caption=digest,
        )
        async with self._database.begin() as connection:
            if await store.count_open(connection, account) >= MAX_OPEN:
                raise TooManyUploads
            await store.add(connection, row)
        return _to_upload(row, ())

    async def get(self, account: str, upload: str) -> Upload | None:
        """Return an upload that is not complete or was not yet put into its workspace."""
        async with self._database.read() as connection:
            row = await store.get_open(connection, account, upload)
            return _to_upload(row, await store.list_parts(connection, upload)) if row else None

    async def append(self, account: str, upload: Upload, offset: int, content: bytes) -> Upload:
        """Store a part; raises PartMismatch, StorageFull, and ContentMismatch for a wrong length."""
        if offset != upload.offset:
            raise PartMismatch(upload.offset)
        end = offset + len(content)
        if end > upload.size:
            raise ContentMismatch(f"the upload has {upload.size} bytes, and this part ends at {end}")
        if end < upload.size and len(content) < MIN_PART_BYTES:
            raise ContentMismatch(f"a part other than the last has at least {MIN_PART_BYTES} bytes")
        if content:
            await self._store_part(account, upload, offset, content)
        found = await self.get(account, upload.id)
        if found is None:
            raise PartMismatch(0)
        return found

    async def _store_part(self, account: str, upload: Upload, offset: int, content: bytes) -> None:
        part = FileRow(
            id=f"prt_{upload.id.removeprefix('upl_')}{offset:010d}",
            account=account,
            conversation=None,
            state=FileState.PART,
            identity=sha256(f"{upload.id}\n{offset}".encode()).hexdigest(),
            name=upload.id,
            type="application/octet-stream",
            size=len(content),
            sha256=await self._file_store.write_blob(account, content),
            created_at=utc_now(),
            turn=upload.id,
        )
        async with self._database.begin() as connection:
            added = await store.add(connection, part)
        if not added:
            now = await self.get(account, upload.id)
            raise PartMismatch(now.offset if now else 0)

    async def read(self, upload: Upload) -> bytes:
        """Return the content of a complete upload; raises ContentMismatch if it is not what was announced."""
        async with self._database.read() as connection:
            parts = await store.list_parts(connection, upload.id)
        content = bytearray()
        for part in parts:
            content += await self._file_store.read_blob(part.sha256 or "") or b""
        if len(content) != upload.size or (upload.sha256 and sha256(content).hexdigest() != upload.sha256):
            raise ContentMismatch("the content has another size or SHA-256 than announced: upload it again")
        return bytes(content)

    async def end(self, upload: Upload) -> None:
        """Forget an upload and its parts. Idempotent."""
        async with self._database.begin() as connection:
            await store.delete_open(connection, upload.id)


def _to_upload(row: FileRow, parts: Sequence[FileRow]) -> Upload:
    return Upload(
        id=row.id,
        workspace=row.name,
        path=row.path,
        size=int(row.version),
        offset=sum(part.size for part in parts),
        sha256=row.caption,
        expires_at=row.created_at + UPLOAD_TIME,
    )
