"""A channel's notes in memory, for adapters that are tried without a gateway."""

from __future__ import annotations

from collections.abc import Mapping

from channels.port import ChannelState


class MemoryChannelState(ChannelState):
    """Notes that last as long as this object; give it to a second connection to try a restart."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    async def get(self, name: str) -> str | None:
        """Return a note."""
        return self.values.get(name)

    async def set(self, values: Mapping[str, str]) -> None:
        """Keep notes."""
        self.values |= values

    async def list(self, prefix: str = "") -> Mapping[str, str]:
        """Return the notes whose names begin so."""
        return {name: note for name, note in self.values.items() if name.startswith(prefix)}
