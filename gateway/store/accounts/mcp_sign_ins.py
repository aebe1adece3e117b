"""SQL of sign-ins at MCP servers: encrypted tokens of people, and the clients registered for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, String, bindparam, delete, insert, or_, select, tuple_, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.key_tables import ended_sign_ins
from gateway.store.key_tables import mcp_sign_ins as table
from gateway.store.tables import account_of_record

CLAIM = timedelta(seconds=15)
"""How long the claim of a renewal lasts unless its process extends it; after a kill another process waits."""

NO_PERSON = ""
"""The person of the row that has the registered client."""


_NEXT_SERVER = (
    select(table.c.agent, table.c.server)
    .where(
        tuple_(table.c.agent, table.c.server)
        > tuple_(bindparam("after_agent", type_=String), bindparam("after_server", type_=String))
    )
    .order_by(table.c.agent, table.c.server)
    .limit(1)
)
"""The first server after another one, found in the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInKey:
    """Whose sign-in it is: an agent record, the name of its server, and a person's subject."""

    agent: str
    server: str
    person: str

    @property
    def field(self) -> str:
        """Return the name of the encrypted field in the agent's row."""
        return f"{self.server}:{self.person}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalClaim:
    """A claimed renewal: the account of the agent, and whether it follows the claim of another process.

    That process has left its claim without an end: it died, or is stopped and may go on.
    """

    account: str
    follows_another: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSignIn:
    """A sign-in of an agent that left the settings file, with its envelope."""

    key: SignInKey
    account: str
    sealed: str = field(repr=False)


def _is(key: SignInKey) -> ColumnElement[bool]:
    return (table.c.agent == key.agent) & (table.c.server == key.server) & (table.c.person == key.person)


async def get(connection: Connection, key: SignInKey) -> str | None:
    """Return the envelope of a sign-in, or None."""
    found = await connection.execute(select(table.c.sealed).where(_is(key)))
    return found.scalar_one_or_none()


async def save(connection: Connection, key: SignInKey, sealed: str) -> None:
    """Store the envelope of a sign-in, in place of an earlier one, and end its claim."""
    values = {"sealed": sealed, "claimed_until": None, "updated_at": utc_now()}
    await connection.execute(
        insert_on_conflict(table, connection.dialect.name)
        .values(
            agent=key.agent,
            server=key.server,
            person=key.person,
            account=account_of_record(key.agent),
            **values,
        )
        .on_conflict_do_update(index_elements=["agent", "server", "person"], set_=values)
    )


async def replace(connection: Connection, key: SignInKey, old: str, new: str) -> bool:
    """Store a renewed envelope if the old one is still there, and end the claim."""
    values = {"sealed": new, "claimed_until": None, "updated_at": utc_now()}
    replaced = await connection.execute(update(table).where(_is(key), table.c.sealed == old).values(values))
    return bool(replaced.rowcount)


async def claim(
    connection: Connection, key: SignInKey, sealed: str, *, alone_since: datetime | None = None
) -> RenewalClaim | None:
    """Claim the renewal of this envelope for `CLAIM`; one process gets it.

    Claims from before `alone_since` are of processes that have died.
    """
    now = utc_now()
    before = await connection.execute(select(table.c.claimed_until).where(_is(key)))
    left = before.scalar_one_or_none()
    is_held: ColumnElement[bool] = table.c.claimed_until.between(
        now, now + 2 * CLAIM
    )  # else of a clock that was fast
    if alone_since is not None:
        is_held = is_held & (table.c.claimed_until >= alone_since + CLAIM)
    free = or_(table.c.claimed_until.is_(None), ~is_held)
    claimed = await connection.execute(
        update(table)
        .where(_is(key), table.c.sealed == sealed, free)
        .values(claimed_until=now + CLAIM)
        .returning(table.c.account)
    )
    account: str | None = claimed.scalar_one_or_none()
    if account is None:
        return None
    return RenewalClaim(account=account, follows_another=left is not None and alone_since is None)


async def extend_claim(connection: Connection, key: SignInKey, sealed: str) -> None:
    """Let the claim of a renewal that goes on last for another `CLAIM`."""
    held = update(table).where(_is(key), table.c.sealed == sealed, table.c.claimed_until.is_not(None))
    await connection.execute(held.values(claimed_until=utc_now() + CLAIM))


async def release(connection: Connection, key: SignInKey, sealed: str) -> None:
    """End a claim without a new envelope."""
    await connection.execute(
        update(table).where(_is(key), table.c.sealed == sealed).values(claimed_until=None)
    )


async def remove(connection: Connection, key: SignInKey, *, sealed: str | None = None) -> bool:
    """Delete a sign-in, or only this envelope of it; returns whether there was one."""
    removed = delete(table).where(_is(key))
    if sealed is not None:
        removed = removed.where(table.c.sealed == sealed)
    return bool((await connection.execute(removed)).rowcount)


async def take(connection: Connection, key: SignInKey) -> str | None:
    """Delete a sign-in and return its envelope, or None if there was none."""
    taken = await connection.execute(delete(table).where(_is(key)).returning(table.c.sealed))
    return taken.scalar_one_or_none()


async def end_for_agent(connection: Connection, agent: str) -> None:
    """Move the sign-ins of people of an agent to the ended ones."""
    names = ("agent", "server", "person", "account", "sealed")
    mine = select(*(table.c[name] for name in names)).where(
        table.c.agent == agent, table.c.person != NO_PERSON
    )
    await connection.execute(insert(ended_sign_ins).from_select(names, mine))
    await connection.execute(delete(table).where(table.c.agent == agent))


async def take_ended(connection: Connection, limit: int) -> list[EndedSignIn]:
    """Delete ended sign-ins, at most so many, and return them."""
    ended = ended_sign_ins.c
    columns = (ended.agent, ended.server, ended.person)
    first = select(*columns).where(ended.agent > "").order_by(*columns).limit(limit)
    taken = await connection.execute(
        delete(ended_sign_ins).where(tuple_(*columns).in_(first)).returning(ended_sign_ins)
    )
    return [
        EndedSignIn(
            key=SignInKey(agent=row.agent, server=row.server, person=row.person),
            account=row.account,
            sealed=row.sealed,
        )
        for row in taken
    ]


async def list_servers(connection: Connection, agent: str, person: str) -> list[str]:
    """Return the servers of an agent at which a person is signed in."""
    found = await connection.execute(
        select(table.c.server)
        .where(table.c.agent == agent, table.c.person == person)
        .order_by(table.c.server)
    )
    return list(found.scalars())


async def list_keys(connection: Connection, agent: str) -> list[SignInKey]:
    """Return the keys of all sign-ins of an agent, those of the registered clients included."""
    found = await connection.execute(
        select(table.c.agent, table.c.server, table.c.person).where(table.c.agent == agent)
    )
    return [SignInKey(agent=row.agent, server=row.server, person=row.person) for row in found]


async def list_used_servers(connection: Connection) -> list[tuple[str, str]]:
    """Return all agents with their servers at which a person is signed in; the people are skipped."""
    used: list[tuple[str, str]] = []
    while True:
        agent, server = used[-1] if used else ("", "")
        found = await connection.execute(_NEXT_SERVER, {"after_agent": agent, "after_server": server})
        row = found.first()
        if row is None:
            return used
        used.append((row.agent, row.server))
