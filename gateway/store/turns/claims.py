"""SQL of claims: the fence that a claim raises, and what the same statement reads of its conversation."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Executable, bindparam, literal_column, select, update

from delivery.database.engine import Connection
from gateway.store.conversations.conversations import COLUMNS, Conversation
from gateway.store.tables import conversations

# These are text, because SQLAlchemy leaves the names of tables out of what SQLite returns.
_REVISION: ColumnElement[int] = literal_column(
    "(SELECT accounts.revision FROM accounts WHERE accounts.id = conversations.account)"
).label("revision")
_HAS_MEMORIES: ColumnElement[bool] = literal_column(
    "EXISTS (SELECT 1 FROM memories WHERE memories.account = conversations.account)"
).label("has_memories")
_HAS_BUDGETS: ColumnElement[bool] = literal_column(
    "(EXISTS (SELECT 1 FROM budgets WHERE budgets.account = conversations.account) OR EXISTS"
    " (SELECT 1 FROM persons WHERE persons.account = conversations.account AND persons.budget IS NOT NULL))"
).label("has_budgets")
_CLAIMED = (*COLUMNS, conversations.c.fence, _REVISION, _HAS_MEMORIES, _HAS_BUDGETS)
_RAISE_FENCE = (
    update(conversations)
    .where(conversations.c.id == bindparam("of"))
    .values(fence=conversations.c.fence + 1)
    .returning(*_CLAIMED)
)
_FREE = (
    select(conversations.c.id)
    .where(conversations.c.id == bindparam("of"))
    .with_for_update(key_share=True, skip_locked=True)
    .scalar_subquery()
)
_RAISE_FENCE_IF_FREE = (
    update(conversations)
    .where(conversations.c.id == _FREE)
    .values(fence=conversations.c.fence + 1)
    .returning(*_CLAIMED)
)
_READ = select(*_CLAIMED).where(conversations.c.id == bindparam("of"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedConversation:
    """A conversation as the claim of a turn has read it, with its fence and its account's revision.

    `has_memories`: the account has notes. `has_budgets`: it, or one of its people, has budgets; agents may
    have some of their own.
    """

    conversation: Conversation
    fence: int
    revision: int
    has_memories: bool
    has_budgets: bool


async def raise_fence(connection: Connection, conversation: str) -> ClaimedConversation | None:
    """Raise the fence, so that writes of earlier lease holders fail; None if the conversation was deleted."""
    return await _execute(connection, _RAISE_FENCE, conversation)


async def raise_fence_if_free(connection: Connection, conversation: str) -> ClaimedConversation | None:
    """Raise the fence unless another transaction changes the conversation; None if one does.

    For transactions that have changed turns: others change the conversation first, and to wait for them
    would be a deadlock.
    """
    return await _execute(connection, _RAISE_FENCE_IF_FREE, conversation)


async def read(connection: Connection, conversation: str) -> ClaimedConversation | None:
    """Return a conversation for a claim under its present fence; None if it was deleted."""
    return await _execute(connection, _READ, conversation)


async def _execute(
    connection: Connection, statement: Executable, conversation: str
) -> ClaimedConversation | None:
    row = (await connection.execute(statement, {"of": conversation})).mappings().first()
    if row is None:
        return None
    found = dict(row)
    return ClaimedConversation(
        fence=int(found.pop("fence")),
        revision=int(found.pop("revision")),
        has_memories=bool(found.pop("has_memories")),
        has_budgets=bool(found.pop("has_budgets")),
        conversation=Conversation(**found),
    )
