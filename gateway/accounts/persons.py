"""People of an account: who is seen on which platform, and the codes that join a person's identities.

An identity is a person's account on a platform (`telegram:4711`; in Slack apps of many workspaces
`slack:T1:U1`). A person is made when an identity is first seen. Notes and USER scopes belong to the person's
subject: the identity that was seen first. Until identities are joined, that is the identity itself.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.events.event import new_id
from gateway.store.accounts import budgets, records, revisions
from gateway.store.accounts import persons as store
from gateway.store.accounts.persons import Identity, Person
from gateway.store.conversations import memories
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.memories import MemoryScope

CODE_LIFETIME = timedelta(minutes=10)
MAX_FAILURES = 5
"""Wrong codes that an identity may give within the lifetime of a code."""

MAX_CACHED_PEOPLE = 10_000

_LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_CODE_LENGTH = 8
_TEAM, _ENTERPRISE = "team", "enterprise"


class CannotLink(Exception):
    """Identities are not joined or separated; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Somebody who wrote something: the platform (with its workspace), the id there, and the name."""

    account: str
    platform: str
    author: str
    name: str = ""

    @property
    def identity(self) -> str:
        """The id of the identity."""
        return f"{self.platform}:{self.author}"


def platform_name(kind: str, address: Address) -> str:
    """Return the platform on which an author's id is unique: the channel's kind, and a Slack workspace."""
    team = address.extras.get(_TEAM, "")
    return f"{kind}:{team}" if team else kind


def ids_in_workspace(author: str, address: Address) -> list[str]:
    """Return the ids that name an author together with the Slack workspace or organisation of a chat."""
    places = (address.extras.get(name) for name in (_TEAM, _ENTERPRISE))
    return [f"{place}:{author}" for place in places if place]


def is_listed(ids: Collection[str], author: str, address: Address) -> bool:
    """Return whether a list of ids names an author, by the id alone or together with the workspace."""
    return author in ids or any(one in ids for one in ids_in_workspace(author, address))


async def platform_of(connection: Connection, conversation: Conversation | None) -> str | None:
    """Return the platform of a conversation's people; None for one outside chats."""
    if conversation is None or conversation.channel is None:
        return None
    channel = await records.get_by_id(connection, conversation.channel)
    if channel is None:
        return conversation.channel
    kind = str(channel.config["kind"])
    if conversation.address is None:
        return kind
    return platform_name(kind, Address.decode(conversation.address))


async def subject_of(connection: Connection, account: str, platform: str, author: str) -> str:
    """Return the key under which notes and sandboxes of a person are kept."""
    identity = f"{platform}:{author}"
    return await store.get_subject(connection, account, identity) or identity


async def subject_named(connection: Connection, account: str, given: str) -> str | None:
    """Return the key of a person that a request names by an id or by an identity.

    An identity may be one that has not been seen yet. None for an unknown id, and for what has no platform.
    """
    person = await store.get(connection, account, given)
    if person is not None:
        return person.subject
    subject = await store.get_subject(connection, account, given)
    if subject is not None:
        return subject
    platform, _, author = given.partition(":")
    return given if platform and author and given.isprintable() and " " not in given else None


async def see(connection: Connection, seen: Sighting) -> Identity:
    """Return the identity of a person; it and a person are made when it is first seen."""
    known = await store.get_identity(connection, seen.account, seen.identity)
    if known is not None:
        return known
    now = utc_now()
    person = Person(id=new_id("per"), account=seen.account, subject=seen.identity, created_at=now)
    if not await store.insert_person(connection, person):
        # Another transaction has made it, or the subject belongs to a person from whom it was separated.
        known = await store.get_identity(connection, seen.account, seen.identity)
        if known is not None:
            return known
        person = Person(id=person.id, account=seen.account, subject=person.id, created_at=now)
        await store.insert_person(connection, person)
        await revisions.renew(connection, seen.account)  # until now its subject was the identity itself
    identity = Identity(
        id=seen.identity,
        account=seen.account,
        person=person.id,
        platform=seen.platform,
        author=seen.author,
        name=seen.name[:200],
        created_at=now,
    )
    await store.insert_identity(connection, identity)
    return identity


async def issue_code(connection: Connection, identity: Identity) -> str:
    """Return a new code that joins another identity to this one's person; earlier codes end."""
    code = "".join(secrets.choice(_LETTERS) for _ in range(_CODE_LENGTH))
    expires_at = utc_now() + CODE_LIFETIME
    digest = _digest(identity.account, code)
    await store.set_code(connection, identity.person, digest, expires_at=expires_at)
    return code


async def redeem_code(connection: Connection, identity: Identity, code: str) -> Person | None:
    """Join an identity's person to the code's person and return that; None for a wrong or expired code.

    Raises CannotLink after too many wrong codes, and for a code of the person itself.
    """
    now = utc_now()
    is_recent = identity.failed_at is not None and identity.failed_at > now - CODE_LIFETIME
    failures = identity.failures if is_recent else 0
    if failures >= MAX_FAILURES:
        minutes = int(CODE_LIFETIME.total_seconds() // 60)
        raise CannotLink(f"there were {failures} wrong codes: wait {minutes} minutes")
    person = await link(connection, identity.account, identity.person, code)
    if person is None:
        failed_at = identity.failed_at if failures else now
        await store.set_failures(connection, identity, failures + 1, failed_at=failed_at)
    return person


async def link(connection: Connection, account: str, person: str, code: str) -> Person | None:
    """Join a person to the person who got a code, and return that; None for a wrong or expired code.

    The notes of both are the joined person's, and so is the budget of one of them. Raises CannotLink for a
    code of the person itself.
    """
    await revisions.lock(connection, account)
    kept = await store.take_code(
        connection, account, _digest(account, code), now=utc_now(), lifetime=CODE_LIFETIME
    )
    if kept is None:
        return None
    if kept.id == person:
        raise CannotLink("this code was given to the same person: send it on the other platform")
    joined = await store.get(connection, account, person)
    if joined is None:
        raise CannotLink("this person no longer exists")
    await store.move_identities(connection, account, joined.id, kept.id)
    await memories.move_subject(connection, account, MemoryScope.PERSON, old=joined.subject, new=kept.subject)
    await store.delete_person(connection, account, joined.id)
    if kept.budget is None and joined.budget is not None:
        await budgets.set_person_budget(connection, account, kept.id, joined.budget)
        return replace(kept, budget=joined.budget)
    return kept


async def unlink(connection: Connection, person: Person, identity: str) -> Person | None:
    """Make an identity a person of its own and return that; None if the person has no such identity.

    Notes and files stay with the person. Raises CannotLink if it is the person's only identity.
    """
    await revisions.lock(connection, person.account)
    found = await store.get_identity(connection, person.account, identity)
    if found is None or found.person != person.id:
        return None
    if await store.count_identities(connection, person.id) == 1:
        raise CannotLink("it is the only identity of this person")
    now = utc_now()
    own = Person(id=new_id("per"), account=person.account, subject=identity, created_at=now)
    if not await store.insert_person(connection, own):
        own = Person(id=own.id, account=person.account, subject=own.id, created_at=now)
        await store.insert_person(connection, own)
    await store.move_identities(connection, person.account, person.id, own.id, identity=identity)
    return own


def _digest(account: str, code: str) -> str:
    return sha256(f"{account} {code.strip().upper()}".encode()).hexdigest()


class SeenPeople:
    """Records people when they are first seen; those of the last messages are not looked up again."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def see(self, connection: Connection, seen: Sighting) -> None:
        """Record a person in the caller's transaction, unless that was done before."""
        key = (seen.account, seen.identity)
        if key in self._known:
            self._known.move_to_end(key)
            return
        # Somebody who is known already is remembered; a new row may be rolled back with its transaction.
        if await store.get_identity(connection, seen.account, seen.identity) is None:
            await see(connection, seen)
            return
        self._known[key] = None
        if len(self._known) > MAX_CACHED_PEOPLE:
            self._known.popitem(last=False)
