"""Take snapshots of sandboxes, validate them and restore them."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from sandbox.errors import FeatureUnsupported, ProviderRefused, SandboxError, UnsafePath
from sandbox.lifecycle.reservations import Reservation
from sandbox.port import Sandbox
from sandbox.snapshots import archive
from sandbox.snapshots.port import SnapshotNotFound, SnapshotStore

log = structlog.get_logger(__name__)

MAX_SNAPSHOT_BYTES = 2 * 1024**3
CHUNK = 512 * 1024
MAX_EXPANSION = 8
"""The ratio of a snapshot's unpacked content to the limit of its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSnapshot:
    """A snapshot by its name, with its file; None if the store has it."""

    name: str
    file: Path | None

    @property
    def is_new(self) -> bool:
        """Return whether the store does not have it."""
        return self.file is not None


class Snapshotter:
    """Snapshots in a store. `limit` is the most bytes of one; `scratch` holds it temporarily."""

    def __init__(self, store: SnapshotStore, scratch: Path, *, limit: int = MAX_SNAPSHOT_BYTES) -> None:
        self._store = store
        self._scratch = scratch
        self._limit = limit

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Create a directory for one snapshot, and remove it after the block."""
        with tempfile.TemporaryDirectory(dir=self._open_scratch(), prefix="save-") as folder:
            yield Path(folder)

    async def pack(self, sandbox: Sandbox, row: Reservation, folder: Path) -> PackedSnapshot | None:
        """Pack what a sandbox holds into a file of the folder; None if its provider refuses that.

        The name holds the row's lock_version, which fences the later write of the row, and the hash.
        """
        file = folder / "snapshot"
        try:
            digest = await self._write(sandbox.save(), file)
        except FeatureUnsupported:
            return None
        except ProviderRefused as error:
            log.warning("snapshot.rejected", label=row.label, error=str(error))
            return None
        if row.snapshot is not None and row.snapshot.endswith(digest):
            return self.present(row)
        return PackedSnapshot(name=f"{row.label}/{row.lock_version:010}-{digest}", file=file)

    def present(self, row: Reservation) -> PackedSnapshot | None:
        """Return the snapshot that the row has, which need not be stored again."""
        return PackedSnapshot(name=row.snapshot, file=None) if row.snapshot is not None else None

    async def store(self, packed: PackedSnapshot) -> None:
        """Store a snapshot, unless the store has it; raises the errors of the store."""
        if packed.file is not None:
            await self._store.put(packed.name, packed.file)

    def _open_scratch(self) -> Path:
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._scratch

    async def _write(self, stream: AsyncIterator[bytes], file: Path) -> str:
        sum_, size = hashlib.sha256(), 0
        with file.open("wb") as target:
            async for chunk in stream:
                size += len(chunk)
                if size > self._limit:
                    raise ProviderRefused(f"the snapshot would be larger than {self._limit} bytes")
                sum_.update(chunk)
                await asyncio.to_thread(target.write, chunk)
        return sum_.hexdigest()

    async def restore(self, sandbox: Sandbox, name: str) -> bool:
        """Restore a snapshot; return False, and log it, if it is lost, damaged or unsafe."""
        with tempfile.TemporaryDirectory(dir=self._open_scratch(), prefix="restore-") as folder:
            file = Path(folder) / "snapshot"
            try:
                await self._store.get(name, file)
                await asyncio.to_thread(self._verify, file, name)
                await sandbox.restore(_chunks(file))
            except (SnapshotNotFound, UnsafePath, FeatureUnsupported) as error:
                log.warning("snapshot.restore_failed", snapshot=name, error=str(error))
                return False
        return True

    def _verify(self, file: Path, name: str) -> None:
        """Raise UnsafePath unless the file is what was saved under this name and is safe to unpack."""
        if file.stat().st_size > self._limit:
            raise UnsafePath("the snapshot exceeds its size limit")
        with file.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
        if not name.endswith(f"-{found}"):
            raise UnsafePath("the snapshot is not what was saved: its hash differs")
        archive.validate(file, limit=self._limit * MAX_EXPANSION)

    async def delete(self, name: str) -> None:
        """Delete one snapshot."""
        await self._store.delete(name)

    async def prune(self, name: str) -> None:
        """Delete the snapshots of a label that are older than this one."""
        label = name.partition("/")[0]
        for other in await self._store.list(f"{label}/"):
            if other < name:
                await self._store.delete(other)

    async def delete_all(self, label: str) -> None:
        """Delete every snapshot of a label; the reaper finds those that cannot be deleted now."""
        try:
            for name in await self._store.list(f"{label}/"):
                await self._store.delete(name)
        except (SandboxError, OSError) as error:
            log.warning("snapshot.delete_failed", label=label, error=str(error))

    async def list_labels(self, prefix: str) -> Sequence[str]:
        """Return the labels with this prefix that have snapshots."""
        return sorted({name.partition("/")[0] for name in await self._store.list(prefix)})


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as source:
        while chunk := await asyncio.to_thread(source.read, CHUNK):
            yield chunk
