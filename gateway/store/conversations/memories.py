"""SQL of memories, with full-text search on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    TableClause,
    and_,
    bindparam,
    column,
    delete,
    false,
    func,
    literal_column,
    or_,
    select,
    text,
    update,
)

from delivery.database.engine import Connection
from gateway.store.memory_tables import SEARCH_INDEX
from gateway.store.memory_tables import memories as table

_INDEX = TableClause(SEARCH_INDEX, column("rowid", BigInteger))

# Written out, because SQLAlchemy's functions of this name would load the dialect in every process.
_MATCHES = "to_tsvector('simple', memories.words) @@ to_tsquery('simple', :wanted)"
_RANK = "ts_rank(to_tsvector('simple', memories.words), to_tsquery('simple', :wanted)) DESC"


class MemoryScope(StrEnum):
    """Whom a memory is about, and who can read it."""

    PERSON = "person"
    ROOM = "room"
    AGENT = "agent"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySubject:
    """What a memory belongs to: one person, room, agent or account."""

    scope: MemoryScope
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A stored note."""

    id: str
    account: str
    scope: MemoryScope
    subject: str
    text: str
    created_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def belongs_to(self) -> MemorySubject:
        """Return what the note belongs to."""
        return MemorySubject(scope=self.scope, key=self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFilter:
    """Which notes of an account: of any of the `subjects` (None: all), and of a scope."""

    account: str
    subjects: Sequence[MemorySubject] | None = None
    scope: MemoryScope | None = None
    subject: str | None = None

    def query(self) -> Select[Any]:
        """Return the notes as a statement, which gets `parameters` when it is executed."""
        count = None if self.subjects is None else len(self.subjects)
        return _select_of(count, has_scope=self.scope is not None, has_subject=self.subject is not None)

    def parameters(self) -> dict[str, object]:
        """Return the values of `query`."""
        given: dict[str, object] = {"whose": self.account, "in_scope": self.scope, "about": self.subject}
        for place, one in enumerate(self.subjects or ()):
            given |= {f"scope_{place}": one.scope, f"key_{place}": one.key}
        return {name: value for name, value in given.items() if value is not None}


@cache
def _select_of(subjects: int | None, *, has_scope: bool, has_subject: bool) -> Select[Any]:
    found = _select().where(table.c.account == bindparam("whose"))
    if subjects is not None:
        found = found.where(
            or_(
                false(),
                *(
                    and_(
                        table.c.scope == bindparam(f"scope_{place}"),
                        table.c.subject == bindparam(f"key_{place}"),
                    )
                    for place in range(subjects)
                ),
            )
        )
    if has_scope:
        found = found.where(table.c.scope == bindparam("in_scope"))
    return found.where(table.c.subject == bindparam("about")) if has_subject else found


@cache
def _newest(query: Select[Any]) -> Select[Any]:
    return query.order_by(table.c.position.desc()).limit(bindparam("most"))


async def move_subject(
    connection: Connection, account: str, scope: MemoryScope, *, old: str, new: str
) -> None:
    """Give the notes about a person or a room to its other subject."""
    await connection.execute(
        table.update()
        .where(table.c.account == account, table.c.scope == scope, table.c.subject == old)
        .values(subject=new)
    )


async def insert_memory(connection: Connection, memory: Memory, words: str) -> None:
    """Insert a note; raises IntegrityError if its id exists."""
    await connection.execute(
        table.insert().values(
            id=memory.id,
            account=memory.account,
            scope=memory.scope,
            subject=memory.subject,
            text=memory.text,
            words=words,
            created_by=memory.created_by,
            created_at=memory.created_at,
            updated_at=memory.updated_at,
        )
    )


async def get(connection: Connection, account: str, memory: str, *, locked: bool = False) -> Memory | None:
    """Return a note of an account, `locked` to change it."""
    query = _select().where(table.c.account == account, table.c.id == memory)
    row = (await connection.execute(query.with_for_update() if locked else query)).first()
    return None if row is None else _memory(row)


async def count(connection: Connection, account: str) -> int:
    """Return how many notes an account has."""
    query = select(func.count()).select_from(table).where(table.c.account == account)
    return (await connection.execute(query)).scalar_one()


async def list_by_id(
    connection: Connection, which: MemoryFilter, *, after: str = "", limit: int
) -> Sequence[Memory]:
    """Return notes by id, which is the order of their creation, after the id `after`."""
    query = which.query().where(table.c.id > after).order_by(table.c.id).limit(limit)
    return [_memory(row) for row in await connection.execute(query, which.parameters())]


async def list_newest(connection: Connection, which: MemoryFilter, *, limit: int) -> Sequence[Memory]:
    """Return the notes that were written last, the newest first."""
    rows = await connection.execute(_newest(which.query()), {**which.parameters(), "most": limit})
    return [_memory(row) for row in rows]


async def search(
    connection: Connection,
    which: MemoryFilter,
    words: Sequence[str],
    *,
    any_word: bool = False,
    limit: int,
) -> Sequence[Memory]:
    """Return the notes in which all words begin a word (or any of them), the best match first.

    The words consist of letters and digits, as `search_words` returns them.
    """
    if not words:
        return []
    build = _search_postgresql if connection.dialect.name == "postgresql" else _search_sqlite
    query = build(which, words, any_word=any_word).limit(limit)
    return [_memory(row) for row in await connection.execute(query, which.parameters())]


def _search_sqlite(which: MemoryFilter, words: Sequence[str], *, any_word: bool) -> Select[Any]:
    index: ColumnElement[str] = literal_column(SEARCH_INDEX)
    wanted = (" OR " if any_word else " AND ").join(f'"{word}"*' for word in words)
    query = f'account : "{which.account}" AND words : ({wanted})'
    found = (
        select(_INDEX.c.rowid.label("place"), func.bm25(index, 0.0, 1.0).label("rank"))
        .select_from(_INDEX)
        .where(index.op("MATCH")(query))
        .subquery()
    )
    return (
        which.query()
        .join(found, found.c.place == table.c.position)
        .order_by(found.c.rank, table.c.position.desc())
    )


def _search_postgresql(which: MemoryFilter, words: Sequence[str], *, any_word: bool) -> Select[Any]:
    wanted = (" | " if any_word else " & ").join(f"{word}:*" for word in words)
    return (
        which.query()
        .where(text(_MATCHES).bindparams(wanted=wanted))
        .order_by(text(_RANK).bindparams(wanted=wanted), table.c.position.desc())
    )


async def update_text(
    connection: Connection, account: str, memory: str, *, content: str, words: str, now: datetime
) -> Memory | None:
    """Replace the text of a note and return the note; None if there is none."""
    await connection.execute(
        update(table)
        .where(table.c.account == account, table.c.id == memory)
        .values(text=content, words=words, updated_at=now)
    )
    return await get(connection, account, memory)


async def delete_memory(connection: Connection, account: str, memory: str) -> bool:
    """Delete a note; returns False if there is none."""
    done = await connection.execute(delete(table).where(table.c.account == account, table.c.id == memory))
    return done.rowcount > 0


def _select() -> Select[Any]:
    return select(*(column for column in table.c if column.name not in {"position", "words"}))


def _memory(row: Row[Any]) -> Memory:
    return Memory(
        id=row.id,
        account=row.account,
        scope=MemoryScope(row.scope),
        subject=row.subject,
        text=row.text,
        created_by=row.created_by,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
