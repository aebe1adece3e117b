"""A channel's state in memory, for adapters without a gateway."""

from __future__ import annotations

from collections.abc import Mapping

from channels.port import ChannelState


class MemoryChannelState(ChannelState):
    """Values that last as long as this object; give it to a second connection to test a restart."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    async def get(self, name: str) -> str | None:
        """Return a value, or None."""
        return self.values.get(name)

    async def set(self, values: Mapping[str, str]) -> None:
        """Store values under their names."""
        self.values |= values

    async def list(self, prefix: str = "") -> Mapping[str, str]:
        """Return the values whose names begin with `prefix`."""
        return {name: value for name, value in self.values.items() if name.startswith(prefix)}
