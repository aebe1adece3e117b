"""The door to where snapshots are kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class SnapshotNotFound(LookupError):
    """There is no snapshot of this name."""


class SnapshotStore(Protocol):
    """Files by name. A name is `LABEL/VERSION-SHA256`; it is never written twice with other content."""

    @abstractmethod
    async def put(self, name: str, archive: Path) -> None:
        """Keep a file whole, or not at all; raises Unreachable, Refused."""

    @abstractmethod
    async def get(self, name: str, into: Path) -> None:
        """Write what is kept under `name` to a file; raises Missing, Unreachable."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Keep it no more; twice is no error."""

    @abstractmethod
    async def list(self, prefix: str = "") -> Sequence[str]:
        """Return the names that begin so."""
