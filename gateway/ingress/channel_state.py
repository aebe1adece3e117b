"""State of channel adapters, stored in the database for restarts and replicas."""

from __future__ import annotations

from collections.abc import Mapping

from channels.port import ChannelSecrets, ChannelState
from delivery.database.engine import Database
from gateway.accounts.vault import AssociatedData, Vault, associated_data
from gateway.store.conversations import channel_secrets
from gateway.store.conversations import channel_state as store


class SqlChannelSecrets(ChannelSecrets):
    """The encrypted secrets of one channel."""

    def __init__(self, database: Database, channel: str, vault: Vault) -> None:
        self._database = database
        self._channel = channel
        self._vault = vault

    async def get(self, name: str) -> str | None:
        """Return a secret or None; raises DatabaseUnavailable, DecryptionFailed."""
        async with self._database.read() as connection:
            sealed = await channel_secrets.get(connection, self._channel, name)
        return self._decrypt(name, sealed)

    async def set(self, name: str, secret: str | None) -> None:
        """Store or delete a secret; raises DatabaseUnavailable."""
        async with self._database.begin() as connection:
            if secret is None:
                await channel_secrets.remove(connection, self._channel, name)
            else:
                sealed = self._vault.encrypt(self._context(name), secret)
                await channel_secrets.save(connection, self._channel, name, sealed)

    async def take(self, name: str) -> str | None:
        """Return and delete a secret; raises DatabaseUnavailable, DecryptionFailed."""
        async with self._database.begin() as connection:
            sealed = await channel_secrets.remove(connection, self._channel, name)
        return self._decrypt(name, sealed)

    async def list(self, prefix: str, *, after: str = "", limit: int = 200) -> Mapping[str, str]:
        """Return secrets in the order of names; raises DatabaseUnavailable, DecryptionFailed."""
        async with self._database.read() as connection:
            found = await channel_secrets.list_by_prefix(
                connection, self._channel, prefix, after=after, limit=limit
            )
        return {name: self._vault.decrypt(self._context(name), sealed) for name, sealed in found.items()}

    def _decrypt(self, name: str, sealed: str | None) -> str | None:
        return None if sealed is None else self._vault.decrypt(self._context(name), sealed)

    def _context(self, name: str) -> AssociatedData:
        return associated_data("channel_secrets", self._channel, name)


class SqlChannelState(ChannelState):
    """The stored values of one channel."""

    def __init__(self, database: Database, channel: str, vault: Vault | None = None) -> None:
        self._database = database
        self._channel = channel
        self.secrets = SqlChannelSecrets(database, channel, vault) if vault else None

    async def get(self, name: str) -> str | None:
        """Return a value or None; raises DatabaseUnavailable."""
        async with self._database.read() as connection:
            return await store.get(connection, self._channel, name)

    async def set(self, values: Mapping[str, str]) -> None:
        """Store values; raises DatabaseUnavailable."""
        async with self._database.begin() as connection:
            await store.save(connection, self._channel, values)

    async def list(self, prefix: str = "") -> Mapping[str, str]:
        """Return the newest values whose names start with `prefix`; raises DatabaseUnavailable."""
        async with self._database.read() as connection:
            return await store.list_by_prefix(connection, self._channel, prefix)
