"""The keeper of snapshots: takes them from sandboxes, puts them back, checks them on the way."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import structlog

from sandbox.errors import Refused, SandboxError, Unsafe, Unsupported
from sandbox.lifecycle.reservations import Reservation
from sandbox.port import Sandbox
from sandbox.snapshots import archive
from sandbox.snapshots.port import Missing, Store

log = structlog.get_logger(__name__)

LIMIT = 2 * 1024**3
CHUNK = 512 * 1024
EXPANDS = 8
"""How much larger than the snapshot's limit its content may be, unpacked."""


class Keeper:
    """Snapshots in a store. `limit` bounds the bytes of one; `scratch` holds it on its way."""

    def __init__(self, store: Store, scratch: Path, *, limit: int = LIMIT) -> None:
        self._store = store
        self._scratch = scratch
        self._limit = limit

    async def save(self, sandbox: Sandbox, row: Reservation) -> str | None:
        """Take a snapshot; returns its name, None when it is the one there is already, or cannot be taken.

        The name holds the row's lock_version, which fences whoever writes the row afterwards, and the hash.
        """
        with tempfile.TemporaryDirectory(dir=self._place(), prefix="save-") as folder:
            file = Path(folder) / "snapshot"
            try:
                digest = await self._write(sandbox.save(), file)
            except Unsupported:
                return None
            except Refused as error:
                log.warning("snapshot.refused", label=row.label, error=str(error))
                return None
            if row.snapshot is not None and row.snapshot.endswith(digest):
                return None
            name = f"{row.label}/{row.lock_version:010}-{digest}"
            await self._store.put(name, file)
        return name

    def _place(self) -> Path:
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._scratch

    async def _write(self, stream: AsyncIterator[bytes], file: Path) -> str:
        sum_, size = hashlib.sha256(), 0
        with file.open("wb") as target:
            async for chunk in stream:
                size += len(chunk)
                if size > self._limit:
                    raise Refused(f"the snapshot would be larger than {self._limit} bytes")
                sum_.update(chunk)
                await asyncio.to_thread(target.write, chunk)
        return sum_.hexdigest()

    async def restore(self, sandbox: Sandbox, name: str) -> bool:
        """Put a snapshot back; False (and a log line) when it is lost, damaged or unsafe: it starts cold."""
        with tempfile.TemporaryDirectory(dir=self._place(), prefix="restore-") as folder:
            file = Path(folder) / "snapshot"
            try:
                await self._store.get(name, file)
                await asyncio.to_thread(self._check, file, name)
                await sandbox.restore(_chunks(file))
            except (Missing, Unsafe, Unsupported) as error:
                log.warning("snapshot.not_restored", snapshot=name, error=str(error))
                return False
        return True

    def _check(self, file: Path, name: str) -> None:
        """Raise Unsafe unless the file is what was saved under this name, and safe to unpack."""
        if file.stat().st_size > self._limit:
            raise Unsafe("the snapshot is larger than it may be")
        with file.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
        if not name.endswith(f"-{found}"):
            raise Unsafe("the snapshot is not what was saved: its hash differs")
        archive.judge(file, limit=self._limit * EXPANDS)

    async def drop(self, name: str) -> None:
        """Forget one snapshot."""
        await self._store.drop(name)

    async def drop_older(self, name: str) -> None:
        """Forget the snapshots of a label that are older than this one."""
        label = name.partition("/")[0]
        for other in await self._store.names(f"{label}/"):
            if other < name:
                await self._store.drop(other)

    async def forget(self, label: str) -> None:
        """Forget every snapshot of a label; what the store refuses now, the next sweep finds."""
        try:
            for name in await self._store.names(f"{label}/"):
                await self._store.drop(name)
        except (SandboxError, OSError) as error:
            log.warning("snapshot.not_forgotten", label=label, error=str(error))

    async def labels(self, prefix: str) -> Sequence[str]:
        """Return the labels that begin so and of which there are snapshots."""
        return sorted({name.partition("/")[0] for name in await self._store.names(prefix)})


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as source:
        while chunk := await asyncio.to_thread(source.read, CHUNK):
            yield chunk
