"""What both sides held when they last agreed, kept where all see it who may carry for the same key."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from sandbox.labels import digest
from sandbox.workspaces.local_files import write_durably
from sandbox.workspaces.sync_plan import Base, Listing, Seen


class Bases(Protocol):
    """Bases by a key of the carrier's. Raises OSError and SandboxError."""

    @abstractmethod
    async def find(self, key: str) -> Base | None:
        """Return what was kept last; None where nothing was, or nothing that can be read."""

    @abstractmethod
    async def keep(self, key: str, base: Base) -> None:
        """Keep it instead of the one before, whole."""

    @abstractmethod
    async def forget(self, key: str) -> None:
        """Keep nothing; twice is no error."""


class LocalBases(Bases):
    """One file for each key in a directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def find(self, key: str) -> Base | None:
        """Read the file."""
        try:
            return parse(await asyncio.to_thread(self._path(key).read_bytes))
        except FileNotFoundError:
            return None

    async def keep(self, key: str, base: Base) -> None:
        """Write the file durably."""
        await asyncio.to_thread(self._keep, key, base)

    def _keep(self, key: str, base: Base) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path(key), dump(base))

    async def forget(self, key: str) -> None:
        """Remove the file."""
        self.drop(key)

    def has(self, key: str) -> bool:
        """Say whether there is a file."""
        return self._path(key).exists()

    def drop(self, key: str) -> None:
        """Remove the file, at once."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._directory / name_of(key)


def name_of(key: str) -> str:
    """Return the name of the file or object that holds a key's base."""
    return f"{digest('sync', key)}.json"


def dump(base: Base) -> bytes:
    """Return a base as it is kept."""
    return json.dumps(asdict(base)).encode()


def parse(raw: bytes) -> Base | None:
    """Read what was kept; None when it is no base."""
    try:
        told = json.loads(raw)
        return Base(sandbox=told["sandbox"], stored=_seen(told["stored"]), inside=_seen(told["inside"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _seen(raw: dict[str, Sequence[Any]]) -> Listing:
    return {path: Seen(*fields) for path, fields in raw.items()}
