"""State of channel adapters, stored in the database for restarts and replicas."""

from __future__ import annotations

from collections.abc import Mapping

from channels.port import ChannelState
from delivery.database.engine import Database
from gateway.store.conversations import channel_state as store


class SqlChannelState(ChannelState):
    """The stored values of one channel."""

    def __init__(self, database: Database, channel: str) -> None:
        self._database = database
        self._channel = channel

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
