"""Blob stores, by digest: the port, and a local directory."""

from __future__ import annotations

import asyncio
import os
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 512 * 1024


class BlobNotFound(Exception):
    """There is no blob with this digest."""


class BlobStore(Protocol):
    """Stores blobs durably under the hexadecimal SHA-256 of their content.

    Each method raises OSError, BrokerUnreachable or BrokerRefused if the store cannot be used.
    """

    @abstractmethod
    async def write(self, digest: str, content: bytes) -> None:
        """Store the bytes; they survive a power failure once this returns. Idempotent."""

    @abstractmethod
    def read_chunks(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks of at most 512 KiB.

        Raises BlobNotFound before the first one, or later if the blob is deleted during the call.
        """

    @abstractmethod
    async def delete(self, digest: str) -> None:
        """Delete the bytes. Idempotent: raises nothing if there are none."""


async def read_all(blob_store: BlobStore, digest: str) -> bytes:
    """Return all bytes of a digest; raises BlobNotFound."""
    return b"".join([chunk async for chunk in blob_store.read_chunks(digest)])


class DirectoryBlobStore(BlobStore):
    """Stores blobs in a directory that only one gateway process uses."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _path(self, digest: str) -> Path:
        return self._directory / digest[:2] / digest

    async def write(self, digest: str, content: bytes) -> None:
        """Write and sync a temporary file, then rename it and sync the directory."""
        await asyncio.to_thread(_write_durably, self._path(digest), content)

    async def read_chunks(self, digest: str) -> AsyncIterator[bytes]:
        """Read the file in chunks, in threads."""
        try:
            file = await asyncio.to_thread(self._path(digest).open, "rb")
        except FileNotFoundError:
            raise BlobNotFound from None
        try:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
        finally:
            file.close()

    async def delete(self, digest: str) -> None:
        """Delete the file."""
        await asyncio.to_thread(self._path(digest).unlink, missing_ok=True)


def _write_durably(path: Path, content: bytes) -> None:
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    for directory in (path.parent, path.parent.parent):
        _fsync_directory(directory)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
