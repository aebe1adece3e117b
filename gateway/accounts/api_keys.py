"""Accounts and the keys that open them."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from sqlalchemy.exc import IntegrityError

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from delivery.events.event import new_id
from gateway.config.sign_in_settings import KeyScope
from gateway.store.accounts import accounts as store
from gateway.store.accounts.accounts import Account, ApiKey

ALL_SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)

KEY_PATTERN = re.compile(r"^dvk_[A-Za-z0-9_-]{43}$")
_CACHE_SECONDS = 1.0
"""Seconds for which an authentication is cached; a revocation by another replica takes effect after this."""
_CACHE_SIZE = 10_000


class AccountNameTaken(Exception):
    """The name is in use."""

    remedy = "give_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated caller, derived from the key alone and never from a field of the request."""

    account: str
    key: str
    scopes: frozenset[str]


def key_digest(key: str) -> bytes:
    """Return the stored digest of a key; keys are random, so that one hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def generate_key() -> str:
    """Return a new key's text."""
    return f"dvk_{secrets.token_urlsafe(32)}"


async def create_account(connection: Connection, name: str) -> tuple[Account, str]:
    """Create an account with one key of every scope; returns the key's text, which is shown only once."""
    account = Account(id=new_id("acc"), name=name, created_at=utc_now())
    try:
        await store.add_account(connection, account)
    except IntegrityError as error:
        raise AccountNameTaken(f"there is already an account named {name!r}") from error
    _key, text = await create_key(connection, account.id, name="first")
    return account, text


async def create_key(
    connection: Connection,
    account: str,
    *,
    name: str,
    scopes: Sequence[str] = ALL_SCOPES,
    text: str | None = None,
) -> tuple[ApiKey, str]:
    """Create a key (with this text, if one is given); only its digest is stored."""
    text = text or generate_key()
    key = ApiKey(id=new_id("key"), account=account, name=name, scopes=tuple(scopes), created_at=utc_now())
    await store.add_key(connection, key, key_digest(text))
    return key, text


class ApiKeyAuthenticator:
    """Authenticates bearer keys; caches a result for at most a second.

    `on_revoked` is called with the key's id when this process revokes a key, and `on_scopes` with its id and
    scopes when this process changes them, so that its open sockets are closed at once. What another replica
    changes is found by `live_scopes`, which is called regularly.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._cache: dict[bytes, tuple[float, Principal]] = {}
        self.on_revoked: list[Callable[[str], None]] = []
        self.on_scopes: list[Callable[[str, frozenset[str]], None]] = []

    async def authenticate(self, bearer: str) -> Principal | None:
        """Return the principal of a key, or None; raises DatabaseUnavailable."""
        if not KEY_PATTERN.match(bearer):
            return None
        digest = key_digest(bearer)
        known = self._cache.get(digest)
        if known is not None and known[0] > self._clock():
            return known[1]
        return await self._load_principal(digest)

    async def _load_principal(self, digest: bytes) -> Principal | None:
        self._cache.pop(digest, None)
        async with self._database.read() as connection:
            key = await store.get_key_by_digest(connection, digest)
        if key is None or not key.is_live(utc_now()):
            return None
        principal = Principal(account=key.account, key=key.id, scopes=frozenset(key.scopes))
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[digest] = (self._clock() + _CACHE_SECONDS, principal)
        return principal

    async def is_valid(self, principal: Principal) -> bool:
        """Return whether the principal's key is still valid, and has all scopes of the principal."""
        live = await self.live_scopes({principal.key})
        return principal.key in live and principal.scopes <= live[principal.key]

    async def is_of_person(self, principal: Principal) -> bool:
        """Return whether a person got the principal's key by signing in."""
        async with self._database.read() as connection:
            key = await store.get_key(connection, principal.account, principal.key)
        return key is not None and key.subject is not None

    async def live_scopes(self, keys: Collection[str]) -> dict[str, frozenset[str]]:
        """Return the scopes of those of these keys, by id, that are valid; a thousand cost one query."""
        async with self._database.read() as connection:
            return await store.live_scopes(connection, keys)

    async def revoke(self, key_id: str) -> bool:
        """Revoke a key: in this process at once, on other replicas within a second."""
        async with self._database.begin() as connection:
            ended = await store.revoke_key(connection, key_id)
        self.discard(key_id)
        return ended

    def discard(self, key_id: str) -> None:
        """Let a key that was revoked end in this process at once."""
        self.evict(lambda principal: principal.key == key_id)
        for tell in self.on_revoked:
            tell(key_id)

    def apply_scopes(self, key_id: str, scopes: Collection[str]) -> None:
        """Let the changed scopes of a key hold in this process at once."""
        self.evict(lambda principal: principal.key == key_id)
        for tell in self.on_scopes:
            tell(key_id, frozenset(scopes))

    def revoke_account(self, account: str) -> None:
        """Remove a deleted account from the cache and report each of its cached keys as revoked."""
        gone = {principal.key for _until, principal in self._cache.values() if principal.account == account}
        self.evict(lambda principal: principal.account == account)
        for key in gone:
            for tell in self.on_revoked:
                tell(key)

    def evict(self, matches: Callable[[Principal], bool]) -> None:
        """Drop remembered answers, after keys were changed or an account was deleted."""
        self._cache = {
            digest: (until, principal)
            for digest, (until, principal) in self._cache.items()
            if not matches(principal)
        }
