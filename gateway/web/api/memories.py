"""Memories over HTTP: write, list, find, change and delete notes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StrictStr

from delivery.database.engine import Connection
from gateway.accounts import persons
from gateway.memory.memories import MAX_TEXT, NewMemory, TooManyMemories
from gateway.memory.visibility import room_key
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.conversations import memories as store
from gateway.store.conversations.memories import Memory, MemoryFilter, MemoryScope, MemorySubject
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.preconditions import ensure_preconditions
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

MAX_FOUND = 200
"""Notes that a search returns; the best matches come first."""

Text = Annotated[StrictStr, Field(min_length=1, max_length=MAX_TEXT)]
Subject = Annotated[StrictStr, Field(min_length=1, max_length=600)]


class MemoryCreate(RequestModel):
    """A note. `subject` is a person (`telegram:4711` or `per_…`), a conversation in the room, or an agent.

    A note of the account has no subject.
    """

    scope: MemoryScope
    subject: Subject | None = None
    text: Text


class MemoryUpdate(RequestModel):
    """The new text of a note."""

    text: Text


class MemoryQuery(PageQuery):
    """A page of the notes of a scope and a subject, or the notes that contain all words of `q`."""

    scope: MemoryScope | None = None
    subject: Subject | None = None
    q: Annotated[StrictStr, Field(min_length=1, max_length=500)] | None = None


class MemoryResponse(ResponseModel):
    """A note."""

    id: str
    scope: MemoryScope
    subject: str
    text: str
    created_by: str
    created_at: datetime
    updated_at: datetime


def to_response(memory: Memory) -> MemoryResponse:
    """Return a note as a response."""
    return MemoryResponse(
        id=memory.id,
        scope=memory.scope,
        subject=memory.subject,
        text=memory.text,
        created_by=memory.created_by,
        created_at=memory.created_at,
        updated_at=memory.updated_at,
    )


async def create(call: ApiCall[MemoryCreate, NoContent]) -> MemoryResponse:
    """Write a note."""
    async with call.context.database.read() as connection:
        subject = await _subject(connection, call.account, call.body.scope, call.body.subject)
    new = NewMemory(account=call.account, subject=subject, text=call.body.text, created_by=call.principal.key)
    try:
        return to_response(await call.services.memories.write(new))
    except TooManyMemories as error:
        raise HttpProblem(429, str(error)) from None


async def list_memories(call: ApiCall[NoContent, MemoryQuery]) -> ListPage[MemoryResponse]:
    """List notes in the order of their creation, or the matches of `q`, the best first, on one page."""
    query, subject = call.query, call.query.subject
    async with call.context.database.read() as connection:
        if query.scope is not None and subject is not None:
            where = "?/subject"
            subject = (await _subject(connection, call.account, query.scope, subject, where=where)).key
        which = MemoryFilter(account=call.account, scope=query.scope, subject=subject)
        if query.q is None:
            found = await store.list_by_id(connection, which, after=query.after, limit=query.limit + 1)
            page, following = paginate(found, query.limit)
            return ListPage[MemoryResponse](items=[to_response(one) for one in page], next=following)
    best = await call.services.memories.search(which, query.q, limit=min(query.limit, MAX_FOUND))
    return ListPage[MemoryResponse](items=[to_response(one) for one in best], next=None)


async def get(call: ApiCall[NoContent, NoContent]) -> MemoryResponse:
    """Return one note."""
    async with call.context.database.read() as connection:
        found = await store.get(connection, call.account, call.path["id"])
    if found is None:
        raise _unknown()
    return to_response(found)


async def update(call: ApiCall[MemoryUpdate, NoContent]) -> MemoryResponse:
    """Change the text of a note."""

    def check(present: Memory) -> None:
        ensure_preconditions(call.request, to_response(present))

    changed = await call.services.memories.change(call.account, call.path["id"], call.body.text, check=check)
    if changed is None:
        raise _unknown()
    return to_response(changed)


async def delete(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete a note."""

    def check(present: Memory) -> None:
        ensure_preconditions(call.request, to_response(present))

    if not await call.services.memories.delete(call.account, call.path["id"], check=check):
        raise _unknown()


def _unknown() -> HttpProblem:
    return not_found("there is no such memory in this account")


async def _subject(
    connection: Connection, account: str, scope: MemoryScope, given: str | None, *, where: str = "/subject"
) -> MemorySubject:
    """Return the subject that a request names; a room and an agent by an id or a name of the account.

    Raises the 422 of the field `where`.
    """
    if scope is MemoryScope.ACCOUNT:
        if given not in (None, account):
            raise invalid_field(where, "leave it out: a note of the account has no other subject")
        return MemorySubject(scope=scope, key=account)
    if given is None:
        raise invalid_field(where, f"name the {scope} that the note is about")
    find = _FINDERS[scope]
    key = await find(connection, account, given)
    if key is None:
        raise invalid_field(where, _UNKNOWN[scope].format(given=repr(given)))
    return MemorySubject(scope=scope, key=key)


async def _agent(connection: Connection, account: str, given: str) -> str | None:
    """Return the id of an agent; None if there is none."""
    agent = await records.get(connection, account, "agent", given)
    return None if agent is None else agent.id


async def _room(connection: Connection, account: str, given: str) -> str | None:
    """Return the key of a room: of a conversation in it, or as a response names it; None if there is none."""
    conversation = await conversations.get(connection, account, given)
    if conversation is not None:
        return room_key(conversation)
    channel = await records.get(connection, account, "channel", given.partition(":")[0])
    if channel is None:
        return None
    return f"{channel.id}:{given.partition(':')[2]}"


_FINDERS = {MemoryScope.PERSON: persons.subject_named, MemoryScope.AGENT: _agent, MemoryScope.ROOM: _room}
_UNKNOWN = {
    MemoryScope.PERSON: "there is no person {given}: give an id of /accounts/me/persons, or a platform and "
    "an id there, such as telegram:4711",
    MemoryScope.AGENT: "there is no agent {given}",
    MemoryScope.ROOM: "there is no conversation {given}",
}
