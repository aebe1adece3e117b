"""The port of snapshot stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class SnapshotNotFound(LookupError):
    """There is no snapshot of this name."""


class SnapshotStore(Protocol):
    """Snapshot files by name. A name is `LABEL/VERSION-SHA256`; its content never changes.

    Each method also raises ProviderUnreachable, ProviderUnauthorized or ProviderRefused if the store cannot
    be used.
    """

    @abstractmethod
    async def put(self, name: str, archive: Path) -> None:
        """Store a file completely or not at all; raises ProviderRefused if it is too large for the store."""

    @abstractmethod
    async def get(self, name: str, into: Path) -> None:
        """Write the content of `name` to a file; raises SnapshotNotFound, also if it has expired."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Delete a snapshot. Idempotent: raises nothing if there is none."""

    @abstractmethod
    async def list(self, prefix: str = "") -> Sequence[str]:
        """Return the names with this prefix, in their order. Raises nothing if there are none."""
