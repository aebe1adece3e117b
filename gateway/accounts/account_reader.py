"""What turns read of their account's records and people, kept while the account's revision is the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, cast

from delivery.database.engine import Connection
from gateway.accounts import persons
from gateway.store.accounts import records
from gateway.store.accounts.records import Record, RecordKind
from gateway.store.conversations.conversations import Conversation

MAX_ENTRIES = 10_000
"""Entries of a cache; the least recently used are evicted."""

T = TypeVar("T")
Key = tuple[str, ...]


class AccountCache:
    """Entries by key, each with the revision that its account had before it was read."""

    def __init__(self, size: int = MAX_ENTRIES) -> None:
        self._size = size
        self._entries: OrderedDict[Key, tuple[int, object]] = OrderedDict()

    async def get(self, key: Key, revision: int, load: Callable[[], Awaitable[T]]) -> T:
        """Return the entry of a key at a revision; it is loaded if there is none."""
        known = self._entries.get(key)
        if known is not None and known[0] == revision:
            self._entries.move_to_end(key)
            return cast("T", known[1])
        loaded = await load()
        self._entries[key] = revision, loaded
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return loaded


class AccountReader:
    """Reads the records and people of one account on a connection.

    `revision` is the account's, which the claim of a turn has read: what is read is never older than the
    claim, and is kept in the cache. Without both everything is read from the database.
    """

    def __init__(
        self,
        connection: Connection,
        account: str,
        cache: AccountCache | None = None,
        revision: int | None = None,
    ) -> None:
        self.connection = connection
        self._account = account
        self._cache = cache
        self._revision = revision

    async def get_record(self, kind: RecordKind, id_or_name: str | None) -> Record | None:
        """Return a record by its id or name; None if there is none, and for None."""
        if not id_or_name:
            return None
        load = partial(records.get, self.connection, self._account, kind, id_or_name)
        return await self._get((kind, id_or_name), load)

    async def get_platform(self, conversation: Conversation) -> str | None:
        """Return the platform of a conversation's people; see `gateway.accounts.persons.platform_of`."""
        load = partial(persons.platform_of, self.connection, conversation)
        return await self._get(("platform", conversation.channel or "", conversation.address or ""), load)

    async def get_subject(self, platform: str, author: str) -> str:
        """Return the key of a person; see `gateway.accounts.persons.subject_of`."""
        load = partial(persons.subject_of, self.connection, self._account, platform, author)
        return await self._get(("person", platform, author), load)

    async def _get(self, key: Key, load: Callable[[], Awaitable[T]]) -> T:
        if self._cache is None or self._revision is None:
            return await load()
        return await self._cache.get((self._account, *key), self._revision, load)
