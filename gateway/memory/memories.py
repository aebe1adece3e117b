"""Memories of an account: written, found and deleted within the account's limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.accounts.account_reader import AccountCache, AccountReader
from gateway.files.storage.storage_quota import StorageQuota
from gateway.infra.backing_services import BackingServices
from gateway.memory.prompt import render_notes
from gateway.memory.search_words import index_text, search_words
from gateway.memory.visibility import MemoryView, view_of
from gateway.store.accounts.stored_bytes import ROW_BYTES
from gateway.store.conversations import memories as store
from gateway.store.conversations.memories import Memory, MemoryFilter, MemorySubject
from gateway.store.turns.claims import ClaimedConversation
from gateway.store.turns.turns import Turn

MAX_TEXT = 2000
"""Characters of a note."""

MAX_CONTEXT_NOTES = 200
"""Notes that are considered for the context of one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The operator's settings: notes of one account, and bytes of them in the context of a turn (0: none)."""

    limit: int = 10_000
    context_bytes: int = 4000


class MemoryChanged(Exception):
    """A note has changed since a turn was shown it; `present` is the note as it is now."""

    def __init__(self, present: Memory) -> None:
        super().__init__(f"{present.id} has changed")
        self.present = present


class TooManyMemories(Exception):
    """The account has as many notes as it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """A note to write; `id` makes a repetition harmless."""

    account: str
    subject: MemorySubject
    text: str
    created_by: str
    id: str | None = None


def _accept(_present: Memory) -> None:
    """Let a note be changed, whatever it is."""


class Memories:
    """The notes of all accounts, in transactions of their own."""

    def __init__(self, database: Database, quota: StorageQuota, settings: MemorySettings) -> None:
        self._database = database
        self._quota = quota
        self._settings = settings
        self._cache = AccountCache()
        self._views = AccountCache()

    async def write(self, new: NewMemory) -> Memory:
        """Write a note; a known id returns its note. Raises TooManyMemories, StorageFull."""
        now = utc_now()
        memory = Memory(
            id=new.id or new_id("mem"),
            account=new.account,
            scope=new.subject.scope,
            subject=new.subject.key,
            text=storable(new.text),
            created_by=new.created_by,
            created_at=now,
            updated_at=now,
        )
        async with self._quota.reserve(new.account, _size(memory.text), at_least=ROW_BYTES):
            return await self._insert(memory)

    async def _insert(self, memory: Memory) -> Memory:
        async with self._database.begin() as connection:
            known = await store.get(connection, memory.account, memory.id)
            if known is not None:
                return known
            if await store.count(connection, memory.account) >= self._settings.limit:
                raise TooManyMemories(
                    f"the account has {self._settings.limit} memories, which is its limit: delete some, or "
                    "ask the operator to raise memory_limit"
                )
            await store.insert_memory(connection, memory, index_text(memory.text))
        return memory

    async def change(
        self, account: str, memory: str, text: str, *, check: Callable[[Memory], None] = _accept
    ) -> Memory | None:
        """Replace the text of a note; None if there is none. Raises StorageFull.

        `check` gets the note before the change and may raise.
        """
        text = storable(text)
        async with (
            self._quota.reserve(account, _size(text), at_least=ROW_BYTES),
            self._database.begin() as connection,
        ):
            present = await store.get(connection, account, memory, locked=True)
            if present is None:
                return None
            check(present)
            return await store.update_text(
                connection, account, memory, content=text, words=index_text(text), now=utc_now()
            )

    async def delete(self, account: str, memory: str, *, check: Callable[[Memory], None] = _accept) -> bool:
        """Delete a note; returns False if there is none. `check` gets the note and may raise."""
        async with self._database.begin() as connection:
            present = await store.get(connection, account, memory, locked=True)
            if present is None:
                return False
            check(present)
            return await store.delete_memory(connection, account, memory)

    async def get_visible(self, view: MemoryView, memory: str) -> Memory | None:
        """Return a note that a conversation may read."""
        async with self._database.read() as connection:
            found = await store.get(connection, view.account, memory)
        return found if found is not None and view.shows(found) else None

    async def search(self, which: MemoryFilter, query: str, *, limit: int) -> Sequence[Memory]:
        """Return notes in which every word of the query begins a word, the best first; "": the newest."""
        async with self._database.read() as connection:
            if not query.strip():
                return await store.list_newest(connection, which, limit=limit)
            return await store.search(connection, which, search_words(query), limit=limit)

    async def of_turn(self, turn: Turn, claimed: ClaimedConversation) -> TurnMemory:
        """Return the notes that a claimed turn may read and write.

        Its view stays in memory for as long as the conversation and the account's revision are the same.
        """
        conversation = claimed.conversation
        seen_as = (conversation.agent, conversation.address or "", str(conversation.direct))
        key = (conversation.id, turn.asker, *seen_as)
        load = partial(self._load_view, turn, claimed)
        view = await self._views.get(key, claimed.revision, load)
        return TurnMemory(memories=self, view=view, has_notes=claimed.has_memories)

    async def _load_view(self, turn: Turn, claimed: ClaimedConversation) -> MemoryView:
        async with self._database.read() as connection:
            reader = AccountReader(connection, turn.account, self._cache, claimed.revision)
            return await view_of(reader, claimed.conversation, turn.asker)

    async def notes_for(self, view: MemoryView, text: str) -> tuple[str, Sequence[Memory]]:
        """Return the notes for a turn's instructions, those first that share words with `text`.

        They are rendered within the operator's limit, and in a list that may have more of them.
        """
        if not (limit := self._settings.context_bytes):
            return "", ()
        async with self._database.read() as connection:
            newest = await store.list_newest(connection, view.filter, limit=MAX_CONTEXT_NOTES)
            matching = (
                await store.search(
                    connection, view.filter, search_words(text), any_word=True, limit=MAX_CONTEXT_NOTES
                )
                if sum(len(one.text.encode()) for one in newest) > limit
                else ()
            )
        return render_notes(matching, newest, limit=limit), (*matching, *newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMemory:
    """The notes that a turn may read and write.

    A note that another turn or a person has changed since this one was shown it is neither replaced nor
    deleted by it: the change would be lost.
    """

    memories: Memories
    view: MemoryView
    has_notes: bool = True
    """False if the account had no notes when the turn was claimed."""

    shown: dict[str, str] = field(default_factory=dict)
    """The texts of notes as the turn was shown them last, by id."""

    @property
    def scopes(self) -> Sequence[str]:
        """Return the scopes of this conversation, the default first."""
        return [str(one.scope) for one in self.view.subjects]

    async def notes_for(self, text: str) -> str:
        """Return the notes for the turn's instructions."""
        if not self.has_notes:
            return ""
        notes, found = await self.memories.notes_for(self.view, text)
        self.show(*found)
        return notes

    def show(self, *notes: Memory) -> None:
        """Note that the turn is shown these notes."""
        self.shown.update((one.id, one.text) for one in notes)

    async def search(self, query: str, *, limit: int) -> Sequence[Memory]:
        """Return notes in which every word of the query begins a word, the best first; "": the newest."""
        found = await self.memories.search(self.view.filter, query, limit=limit)
        self.show(*found)
        return found

    async def write(self, new: NewMemory) -> Memory:
        """Write a note; a known id returns its note. Raises TooManyMemories, StorageFull."""
        written = await self.memories.write(new)
        self.show(written)
        return written

    async def change(self, memory: str, text: str) -> Memory | None:
        """Replace the text of a note that the turn may read; None if there is none.

        Raises MemoryChanged, StorageFull.
        """
        if await self.memories.get_visible(self.view, memory) is None:
            return None
        changed = await self.memories.change(self.view.account, memory, text, check=self._check)
        if changed is not None:
            self.show(changed)
        return changed

    async def delete(self, memory: str) -> bool:
        """Delete a note that the turn may read; returns False if there is none. Raises MemoryChanged."""
        if await self.memories.get_visible(self.view, memory) is None:
            return False
        return await self.memories.delete(self.view.account, memory, check=self._check)

    def _check(self, present: Memory) -> None:
        if self.shown.get(present.id, present.text) != present.text:
            self.show(present)
            raise MemoryChanged(present)


def open_memories(backing: BackingServices, quota: StorageQuota) -> Memories:
    """Return the notes with the operator's settings."""
    settings = backing.settings
    return Memories(
        backing.database,
        quota,
        MemorySettings(limit=settings.memory_limit, context_bytes=settings.memory_context_bytes),
    )


def storable(text: str) -> str:
    """Return a text that both databases can store, within the limit of a note."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")[:MAX_TEXT]


def _size(text: str) -> int:
    return 2 * len(text.encode()) + ROW_BYTES
