"""Histories of conversations: loaded for each turn, and kept in memory for the next one.

The cache is guarded by the conversation's fence. A fence that this process has raised by one proves that no
other process has written in between, and the entries in memory are complete. In any other case the rows after
the last known one are read. Rows are never changed, so that is always correct.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from delivery.database.engine import Connection
from gateway.agents.history import HistoryEntry, UnreadableHistory, decode_entry, encode_entry
from gateway.conversations.supplied_history import after_added
from gateway.store.conversations import histories
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn

MAX_CACHED_BYTES = 4_000_000
"""Stored bytes of all cached histories; in memory they take several times as much."""

ENTRY_BYTES = 1000
"""What a conversation without a history counts as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A conversation's history up to a position; entries that a later one replaces or undoes are left out."""

    entries: tuple[HistoryEntry, ...] = ()
    position: int = 0
    size: int = 0
    error: UnreadableHistory | None = None

    def get_entries(self) -> Sequence[HistoryEntry]:
        """Return the entries, oldest first; raises UnreadableHistory if one cannot be read."""
        if self.error is not None:
            raise self.error
        return self.entries

    def with_rows(self, rows: Sequence[tuple[int, bytes]]) -> History:
        """Return the history with the rows that follow it."""
        history = self
        for position, body in rows:
            try:
                history = history.with_entry(decode_entry(body), position=position, size=len(body))
            except UnreadableHistory as error:
                return History(position=position, error=error)
        return history

    def with_entry(self, entry: HistoryEntry | None, *, position: int, size: int) -> History:
        """Return the history with one more entry; None is a row of an agent that is unknown."""
        if entry is None:
            return History(entries=self.entries, position=position, size=self.size + size)
        if entry.undoes:
            kept = self.entries[: max(len(self.entries) - entry.undoes, 0)]
            return History(entries=kept, position=position, size=self.size + size)
        if entry.replaces:
            return History(entries=(entry,), position=position, size=size)
        return History(entries=(*self.entries, entry), position=position, size=self.size + size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cached:
    history: History
    fence: int


class HistoryCache:
    """The histories of the conversations that this process has worked on last."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._cached: OrderedDict[str, _Cached] = OrderedDict()
        self._bytes = 0

    async def load(self, connection: Connection, conversation: str, fence: int) -> History:
        """Return the history for the holder of a fence, reading only rows that are not known.

        It is kept for the next turn when `committed` is called after the commit.
        """
        known = self._cached.get(conversation)
        if known is not None and known.fence in (fence, fence - 1):
            return known.history
        history = known.history if known is not None else History()
        return history.with_rows(await histories.list_after(connection, conversation, history.position))

    async def add(self, connection: Connection, turn: Turn, entry: HistoryEntry, earlier: History) -> History:
        """Store what a turn adds, in the caller's transaction, and return the history with it.

        The next turn reads it from the database, unless `committed` is called after the commit.
        """
        self.discard(turn.conversation)
        entry = after_added(turn.id, turn.context, entry)
        body = encode_entry(entry)
        position = await _append(connection, turn, body, replaces=entry.replaces)
        return earlier.with_entry(entry, position=position, size=len(body))

    async def add_progress(self, connection: Connection, turn: Turn) -> None:
        """Make the saved progress of a turn that did not complete its entry, in the caller's transaction."""
        self.discard(turn.conversation)
        with suppress(UnreadableHistory):
            body = await turns.get_progress(connection, turn.id)
            entry = decode_entry(body)
            if entry is not None:
                stored = encode_entry(after_added(turn.id, turn.context, entry))
                await _append(connection, turn, stored, replaces=entry.replaces)

    def committed(self, conversation: str, history: History, fence: int) -> None:
        """Keep a history that was loaded or written under a fence, now that the transaction is committed."""
        self.discard(conversation)
        if history.error is not None or _cost(history) > self._max_bytes:
            return
        self._cached[conversation] = _Cached(history=history, fence=fence)
        self._bytes += _cost(history)
        while self._bytes > self._max_bytes:
            self.discard(next(iter(self._cached)))

    def discard(self, conversation: str) -> None:
        """Have the next turn of a conversation read its history."""
        if (old := self._cached.pop(conversation, None)) is not None:
            self._bytes -= _cost(old.history)


def _cost(history: History) -> int:
    return history.size + ENTRY_BYTES


async def _append(connection: Connection, turn: Turn, body: bytes, *, replaces: bool) -> int:
    position = await histories.append(
        connection, account=turn.account, conversation=turn.conversation, turn=turn.id, body=body
    )
    if replaces:
        await histories.delete_before(connection, turn.conversation, position)
    return position
