"""The command `/memory`: list, find, change and delete the notes that a chat may read."""

from __future__ import annotations

from collections.abc import Sequence

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from gateway.accounts.account_reader import AccountReader
from gateway.memory.memories import MAX_TEXT, storable
from gateway.memory.search_words import index_text, search_words
from gateway.memory.visibility import MemoryView, view_of
from gateway.store.conversations import memories as store
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.memories import Memory, MemoryScope

HELP = (
    "`/memory` lists the notes that I have for this chat, `/memory search WORDS` finds some, "
    "`/memory edit ID TEXT` changes one and `/memory delete ID` deletes one."
)
MAX_LISTED = 20
MAX_QUOTED = 120

_OWN = frozenset({MemoryScope.PERSON, MemoryScope.ROOM})
"""Scopes whose notes people change in the chat; the account changes the others."""


async def execute_memory_command(
    tx: Transaction, conversation: Conversation, args: Sequence[str], *, by: str, is_owner: bool
) -> str:
    """Execute `/memory` of the person `by`, and return the reply; the owner of the account changes all."""
    view = await view_of(AccountReader(tx.connection, conversation.account), conversation, by)
    verb, rest = (args[0].lower() if args else "", args[1:])
    if not verb:
        found = await store.list_newest(tx.connection, view.filter, limit=MAX_LISTED + 1)
        return _render(found) or f"There are no notes for this chat. {HELP}"
    if verb == "search" and rest:
        words = search_words(" ".join(rest))
        found = await store.search(tx.connection, view.filter, words, limit=MAX_LISTED + 1)
        return _render(found) or "No note has these words."
    if verb == "delete" and len(rest) == 1:
        return await _delete(tx, view, rest[0], is_owner=is_owner)
    if verb == "edit" and len(rest) > 1:
        return await _edit(tx, view, rest[0], " ".join(rest[1:]), is_owner=is_owner)
    return HELP


async def _delete(tx: Transaction, view: MemoryView, memory: str, *, is_owner: bool) -> str:
    found = await _changeable(tx, view, memory, is_owner=is_owner)
    if isinstance(found, str):
        return found
    await store.delete_memory(tx.connection, view.account, found.id)
    return f"Deleted: {_quoted(found)}."


async def _edit(tx: Transaction, view: MemoryView, memory: str, text: str, *, is_owner: bool) -> str:
    found = await _changeable(tx, view, memory, is_owner=is_owner)
    if isinstance(found, str):
        return found
    if len(text) > MAX_TEXT:
        return f"Write at most {MAX_TEXT} characters, not {len(text)}."
    text = storable(text)
    changed = await store.update_text(
        tx.connection, view.account, found.id, content=text, words=index_text(text), now=utc_now()
    )
    return f"Changed: {_quoted(changed or found)}."


async def _changeable(tx: Transaction, view: MemoryView, memory: str, *, is_owner: bool) -> Memory | str:
    """Return a note that may be changed here, or why there is none."""
    found = await store.get(tx.connection, view.account, memory)
    if found is None or not view.shows(found):
        return f"There is no note {memory[:40]} in this chat."
    if not is_owner and found.scope not in _OWN:
        return f"{found.id} is read in other chats too; only the account's owner changes it."
    return found


def _render(found: Sequence[Memory]) -> str:
    lines = [f"- {one.id} ({one.scope}): {_quoted(one)}" for one in found[:MAX_LISTED]]
    more = ["There are more; `/memory search WORDS` finds them."] if len(found) > MAX_LISTED else []
    return "\n".join([*lines, *more])


def _quoted(memory: Memory) -> str:
    text = " ".join(memory.text.split()).replace("`", "'")
    return f"`{text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + '…'}`"
