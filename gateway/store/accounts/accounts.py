"""SQL of accounts and their keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, or_, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, RowDeleted
from delivery.database.tables import UtcDateTime
from gateway.store.key_tables import keys
from gateway.store.tables import accounts

KEYS_AT_ONCE = 1000
"""Keys that one query checks."""

_IS_LIVE = keys.c.revoked_at.is_(None) & or_(
    keys.c.expires_at.is_(None), keys.c.expires_at > bindparam("now", type_=UtcDateTime)
)

_LIVE_KEYS = select(keys.c.id, keys.c.scopes).where(
    keys.c.id.in_(bindparam("these", expanding=True)), _IS_LIVE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A tenant; `timezone` None: the operator's."""

    id: str
    name: str
    timezone: str | None = None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as its owner sees it: never the secret itself. `subject`: the person who signed in with it."""

    id: str
    account: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    subject: str | None = None

    def is_live(self, now: datetime) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def _account(row: Row[Any]) -> Account:
    return Account(id=row.id, name=row.name, timezone=row.timezone, created_at=row.created_at)


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        account=row.account,
        name=row.name,
        scopes=tuple(row.scopes),
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        expires_at=row.expires_at,
        subject=row.subject,
    )


async def add_account(connection: Connection, account: Account) -> None:
    """Insert an account; raises IntegrityError when the name is in use."""
    await connection.execute(
        insert(accounts).values(id=account.id, name=account.name, created_at=account.created_at)
    )


async def lock_against_deletion(connection: Connection, account: str) -> None:
    """Let nobody delete an account until this transaction ends; raises RowDeleted if it does not exist.

    For rows of an account without a foreign key to it: those of the delivery tables.
    """
    wanted = select(accounts.c.id).where(accounts.c.id == account).with_for_update(read=True, key_share=True)
    if (await connection.execute(wanted)).first() is None:
        raise RowDeleted(account)


async def get_account(
    connection: Connection, *, account_id: str | None = None, name: str | None = None
) -> Account | None:
    """Return the account of this id or name."""
    wanted = accounts.c.id == account_id if account_id is not None else accounts.c.name == name
    row = (await connection.execute(select(accounts).where(wanted))).one_or_none()
    return _account(row) if row else None


async def set_timezone(connection: Connection, account: str, timezone: str | None) -> None:
    """Set the time zone of an account; None restores the operator's."""
    await connection.execute(update(accounts).where(accounts.c.id == account).values(timezone=timezone))


async def get_storage_limit(connection: Connection, account: str) -> int | None:
    """Return the storage limit of an account in bytes; None if it has none of its own."""
    limit = await connection.execute(select(accounts.c.storage_bytes).where(accounts.c.id == account))
    value: int | None = limit.scalar_one_or_none()
    return value


async def set_storage_limit(connection: Connection, account: str, limit: int | None) -> None:
    """Set the storage limit of an account in bytes; None restores the operator's default."""
    await connection.execute(update(accounts).where(accounts.c.id == account).values(storage_bytes=limit))


async def list_accounts(connection: Connection, *, after: str, limit: int) -> Sequence[Account]:
    """Return the accounts, oldest first."""
    rows = await connection.execute(
        select(accounts).where(accounts.c.id > after).order_by(accounts.c.id).limit(limit)
    )
    return [_account(row) for row in rows]


async def add_key(connection: Connection, key: ApiKey, digest: bytes) -> None:
    """Insert a key by the digest of its text."""
    await connection.execute(
        insert(keys).values(
            id=key.id,
            account=key.account,
            name=key.name,
            scopes=list(key.scopes),
            digest=digest,
            created_at=key.created_at,
            expires_at=key.expires_at,
            subject=key.subject,
        )
    )


async def get_key_by_digest(connection: Connection, digest: bytes) -> ApiKey | None:
    """Return the key with this digest, revoked, expired or not."""
    row = (await connection.execute(select(keys).where(keys.c.digest == digest))).one_or_none()
    return _key(row) if row else None


async def get_key(
    connection: Connection, account: str, id_or_name: str, *, locked: bool = False
) -> ApiKey | None:
    """Return a live key of the account, by id or else by name (the oldest of that name).

    A `locked` one is changed by no other transaction until this one ends.
    """
    query = (
        select(keys)
        .where(
            keys.c.account == account,
            _IS_LIVE,
            (keys.c.id == id_or_name) | (keys.c.name == id_or_name),
        )
        .order_by((keys.c.id != id_or_name), keys.c.id)
        .limit(1)
    )
    rows = await connection.execute(query.with_for_update() if locked else query, {"now": utc_now()})
    row = rows.one_or_none()
    return _key(row) if row else None


async def live_scopes(connection: Connection, ids: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the scopes of those of these keys, by id, that are live."""
    live: dict[str, frozenset[str]] = {}
    now = utc_now()
    remaining = sorted(ids)
    while remaining:
        some, remaining = remaining[:KEYS_AT_ONCE], remaining[KEYS_AT_ONCE:]
        rows = await connection.execute(_LIVE_KEYS, {"these": some, "now": now})
        live.update((row.id, frozenset(row.scopes)) for row in rows)
    return live


async def count_keys(connection: Connection, account: str) -> int:
    """Return how many live keys an account has."""
    live = select(func.count()).where(keys.c.account == account, _IS_LIVE)
    return int((await connection.execute(live, {"now": utc_now()})).scalar_one())


async def list_keys(connection: Connection, account: str, *, after: str, limit: int) -> Sequence[ApiKey]:
    """Return the account's live keys, oldest first."""
    rows = await connection.execute(
        select(keys)
        .where(keys.c.account == account, _IS_LIVE, keys.c.id > after)
        .order_by(keys.c.id)
        .limit(limit),
        {"now": utc_now()},
    )
    return [_key(row) for row in rows]


async def update_key(
    connection: Connection, key_id: str, *, name: str | None = None, scopes: Sequence[str] | None = None
) -> None:
    """Rename a key or give it other scopes."""
    values: dict[str, Any] = {"name": name, "scopes": None if scopes is None else list(scopes)}
    given = {column: value for column, value in values.items() if value is not None}
    if given:
        await connection.execute(update(keys).where(keys.c.id == key_id).values(given))


async def revoke_key(connection: Connection, key_id: str) -> bool:
    """End a key; False when it had ended before."""
    done = await connection.execute(
        update(keys).where(keys.c.id == key_id, keys.c.revoked_at.is_(None)).values(revoked_at=utc_now())
    )
    return done.rowcount > 0
