"""A channel's notes in memory, for adapters that are tried without a gateway."""

from __future__ import annotations

from collections.abc import Mapping

from channels.port import Notes


class MemoryNotes(Notes):
    """Notes that last as long as this object; give it to a second connection to try a restart."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def get(self, name: str) -> str | None:
        """Return a note."""
        return self.kept.get(name)

    async def put(self, notes: Mapping[str, str]) -> None:
        """Keep notes."""
        self.kept |= notes

    async def all(self, prefix: str = "") -> Mapping[str, str]:
        """Return the notes whose names begin so."""
        return {name: note for name, note in self.kept.items() if name.startswith(prefix)}
