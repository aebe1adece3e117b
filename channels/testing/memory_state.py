"""A channel's state in memory, for adapters without a gateway."""

from __future__ import annotations

from collections.abc import Mapping

from channels.port import ChannelSecrets, ChannelState


class MemoryChannelSecrets(ChannelSecrets):
    """Secrets that last as long as this object."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    async def get(self, name: str) -> str | None:
        """Return a secret, or None."""
        return self.values.get(name)

    async def set(self, name: str, secret: str | None) -> None:
        """Store or delete a secret."""
        self.values.pop(name, None)
        if secret is not None:
            self.values[name] = secret

    async def take(self, name: str) -> str | None:
        """Return and delete a secret."""
        return self.values.pop(name, None)

    async def list(self, prefix: str, *, after: str = "", limit: int = 200) -> Mapping[str, str]:
        """Return the secrets after a name."""
        names = sorted(name for name in self.values if name.startswith(prefix) and name > after)
        return {name: self.values[name] for name in names[:limit]}


class MemoryChannelState(ChannelState):
    """Values that last as long as this object; give it to a second connection to test a restart."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.secrets: ChannelSecrets = MemoryChannelSecrets()

    async def get(self, name: str) -> str | None:
        """Return a value, or None."""
        return self.values.get(name)

    async def set(self, values: Mapping[str, str]) -> None:
        """Store values under their names."""
        self.values |= values

    async def list(self, prefix: str = "") -> Mapping[str, str]:
        """Return the values whose names begin with `prefix`."""
        return {name: value for name, value in self.values.items() if name.startswith(prefix)}
