"""What both sides held when they last agreed, kept where all see it who may carry for the same key."""

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
    """Bases by a key of the carrier's. Raises OSError and SandboxError."""

    @abstractmethod
    async def get(self, key: str) -> SyncBaseline | None:
        """Return what was kept last; None where nothing was, or nothing that can be read."""

    @abstractmethod
    async def save(self, key: str, baseline: SyncBaseline) -> None:
        """Keep it instead of the one before, whole."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Keep nothing; twice is no error."""


class LocalBaselineStore(BaselineStore):
    """One file for each key in a directory of this machine."""

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
        """Say whether there is a file."""
        return self._path(key).exists()

    def delete_now(self, key: str) -> None:
        """Remove the file, at once."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._directory / file_name(key)


def file_name(key: str) -> str:
    """Return the name of the file or object that holds a key's base."""
    return f"{key_of('sync', key)}.json"


def encode(baseline: SyncBaseline) -> bytes:
    """Return a base as it is kept."""
    return json.dumps(asdict(baseline)).encode()


def decode(raw: bytes) -> SyncBaseline | None:
    """Read what was kept; None when it is no base."""
    try:
        told = json.loads(raw)
        return SyncBaseline(
            sandbox=told["sandbox"],
            stored=_decode_listing(told["stored"]),
            inside=_decode_listing(told["inside"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _decode_listing(raw: dict[str, Sequence[Any]]) -> FileListing:
    return {path: FileStat(*fields) for path, fields in raw.items()}
