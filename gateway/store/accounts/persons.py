"""SQL of people and their identities on platforms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.accounts import revisions
from gateway.store.memory_tables import identities, persons


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """One person of an account; `subject` names the person in notes and owners, and never changes.

    `budget`: the person's own limits per day and month; None: those that the account gives to everybody.
    """

    id: str
    account: str
    subject: str
    budget: Mapping[str, Any] | None = None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A person's account on a platform, and how many wrong codes it has given since a time."""

    id: str
    account: str
    person: str
    platform: str
    author: str
    name: str
    failures: int = 0
    failed_at: datetime | None = None
    created_at: datetime


_PERSON = [persons.c[name] for name in Person.__dataclass_fields__]
_IDENTITY = [identities.c[name] for name in Identity.__dataclass_fields__]
_GET_IDENTITY = select(*_IDENTITY).where(
    identities.c.account == bindparam("whose"), identities.c.id == bindparam("identity")
)
_SUBJECT = (
    select(persons.c.subject)
    .select_from(identities.join(persons, persons.c.id == identities.c.person))
    .where(identities.c.account == bindparam("whose"), identities.c.id == bindparam("identity"))
)


async def get_subject(connection: Connection, account: str, identity: str) -> str | None:
    """Return the subject of the person with this identity."""
    found = await connection.execute(_SUBJECT, {"whose": account, "identity": identity})
    return found.scalar_one_or_none()


async def get(connection: Connection, account: str, person: str, *, locked: bool = False) -> Person | None:
    """Return a person of an account, `locked` to change it."""
    query = select(*_PERSON).where(persons.c.account == account, persons.c.id == person)
    rows = await connection.execute(query.with_for_update() if locked else query)
    row = rows.mappings().first()
    return None if row is None else Person(**row)


async def list_after(connection: Connection, account: str, *, after: str | None, limit: int) -> list[Person]:
    """Return the people of an account whose ids follow `after`."""
    query = select(*_PERSON).where(persons.c.account == account)
    if after is not None:
        query = query.where(persons.c.id > after)
    rows = await connection.execute(query.order_by(persons.c.id).limit(limit))
    return [Person(**row) for row in rows.mappings()]


async def insert_person(connection: Connection, person: Person) -> bool:
    """Insert a person; returns False if the account has another one with this subject."""
    inserted = await connection.execute(
        insert_on_conflict(persons, connection.dialect.name)
        .values(id=person.id, account=person.account, subject=person.subject, created_at=person.created_at)
        .on_conflict_do_nothing()
        .returning(persons.c.id)
    )
    return inserted.first() is not None


async def delete_person(connection: Connection, account: str, person: str) -> None:
    """Delete a person of an account with its identities."""
    await revisions.renew(connection, account)
    await connection.execute(delete(persons).where(persons.c.account == account, persons.c.id == person))


async def get_identity(connection: Connection, account: str, identity: str) -> Identity | None:
    """Return an identity by its id."""
    rows = await connection.execute(_GET_IDENTITY, {"whose": account, "identity": identity})
    row = rows.mappings().first()
    return None if row is None else Identity(**row)


async def list_identities(connection: Connection, people: Sequence[str]) -> list[Identity]:
    """Return the identities of people, the first seen first."""
    rows = await connection.execute(
        select(*_IDENTITY)
        .where(identities.c.person.in_(people))
        .order_by(identities.c.created_at, identities.c.id)
    )
    return [Identity(**row) for row in rows.mappings()]


async def get_names(connection: Connection, account: str, ids: Collection[str]) -> dict[str, str]:
    """Return the names of identities by their ids, without those that have none."""
    if not ids:
        return {}
    rows = await connection.execute(
        select(identities.c.id, identities.c.name).where(
            identities.c.account == account, identities.c.id.in_(sorted(ids)), identities.c.name != ""
        )
    )
    return {row.id: row.name for row in rows}


async def insert_identity(connection: Connection, identity: Identity) -> None:
    """Insert an identity; raises IntegrityError if the account has it."""
    await connection.execute(
        insert(identities).values(
            id=identity.id,
            account=identity.account,
            person=identity.person,
            platform=identity.platform,
            author=identity.author,
            name=identity.name,
            failures=0,
            created_at=identity.created_at,
        )
    )


async def move_identities(
    connection: Connection, account: str, old: str, new: str, *, identity: str | None = None
) -> None:
    """Give the identities of a person, or one of them, to another person of the account."""
    await revisions.renew(connection, account)
    moved = update(identities).where(identities.c.account == account, identities.c.person == old)
    if identity is not None:
        moved = moved.where(identities.c.id == identity)
    await connection.execute(moved.values(person=new))


async def set_code(
    connection: Connection, person: str, digest: str | None, *, expires_at: datetime | None
) -> None:
    """Set the code of a person, in place of an earlier one; None: there is none."""
    await connection.execute(
        update(persons).where(persons.c.id == person).values(code_digest=digest, code_expires_at=expires_at)
    )


async def take_code(
    connection: Connection, account: str, digest: str, *, now: datetime, lifetime: timedelta
) -> Person | None:
    """Use up a code and return its person; None for one that is unknown or expired. One caller gets it.

    A code that ends later than a `lifetime` from now was made by a clock that was fast, and has expired.
    """
    is_valid = persons.c.code_expires_at.between(now, now + lifetime)
    taken = await connection.execute(
        update(persons)
        .where(persons.c.account == account, persons.c.code_digest == digest, is_valid)
        .values(code_digest=None, code_expires_at=None)
        .returning(*_PERSON)
    )
    row = taken.mappings().first()
    return None if row is None else Person(**row)


async def set_failures(
    connection: Connection, identity: Identity, failures: int, *, failed_at: datetime | None
) -> None:
    """Record how many wrong codes an identity has given since a time."""
    await connection.execute(
        update(identities)
        .where(identities.c.account == identity.account, identities.c.id == identity.id)
        .values(failures=failures, failed_at=failed_at)
    )


async def count_identities(connection: Connection, person: str) -> int:
    """Return how many identities a person has."""
    counted = await connection.execute(
        select(func.count()).select_from(identities).where(identities.c.person == person)
    )
    return int(counted.scalar_one())
