"""Store the baselines of syncs: the files that two replicas had in common after their last sync."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from sandbox.labels import key_of
from sandbox.workspaces.local_files import write_durably
from sandbox.workspaces.sync_plan import FileListing, FileStat, SyncBaseline


class BaselineStore(Protocol):
    """Baselines by sync key. Each method may raise OSError and SandboxError."""

    @abstractmethod
    async def get(self, key: str) -> SyncBaseline | None:
        """Return the last baseline; None if there is none or it is unreadable."""

    @abstractmethod
    async def save(self, key: str, baseline: SyncBaseline) -> None:
        """Replace the baseline atomically."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Delete the baseline. Idempotent."""


class LocalBaselineStore(BaselineStore):
    """One file per key in a local directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def get(self, key: str) -> SyncBaseline | None:
        """Read the file."""
        try:
            return decode(await asyncio.to_thread(self._path(key).read_bytes))
        except FileNotFoundError:
            return None

    async def save(self, key: str, baseline: SyncBaseline) -> None:
        """Write the file durably."""
        await asyncio.to_thread(self._save, key, baseline)

    def _save(self, key: str, baseline: SyncBaseline) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path(key), encode(baseline))

    async def delete(self, key: str) -> None:
        """Remove the file."""
        self.delete_now(key)

    def exists(self, key: str) -> bool:
        """Return whether there is a file."""
        return self._path(key).exists()

    def delete_now(self, key: str) -> None:
        """Remove the file synchronously."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._directory / file_name(key)


def file_name(key: str) -> str:
    """Return the name of the file or object that holds a key's baseline."""
    return f"{key_of('sync', key)}.json"


def encode(baseline: SyncBaseline) -> bytes:
    """Encode a baseline."""
    return json.dumps(asdict(baseline)).encode()


def decode(raw: bytes) -> SyncBaseline | None:
    """Decode a stored baseline; return None if it is invalid."""
    try:
        record = json.loads(raw)
        return SyncBaseline(
            sandbox=record["sandbox"],
            stored=_decode_listing(record["stored"]),
            inside=_decode_listing(record["inside"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _decode_listing(raw: dict[str, Sequence[Any]]) -> FileListing:
    return {path: FileStat(*fields) for path, fields in raw.items()}
