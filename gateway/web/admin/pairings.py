"""Pairings over HTTP: who may talk to a bot because an operator took their code, and who waits for it."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictStr

from gateway.conversations.direct_messages import say_aside
from gateway.store.accounts.records import Record
from gateway.store.conversations import pairings as store
from gateway.store.conversations.pairings import Pairing
from gateway.web.http.pagination import Items
from gateway.web.http.problems import Problem, not_found
from gateway.web.http.route import Call, Nothing, Shown, Strict

WELCOME = "You are in."


class Code(Strict):
    """The code that a stranger was given and has told the operator."""

    code: Annotated[StrictStr, Field(min_length=1, max_length=40)]


class PairingPage(Strict):
    """Which part of the list: `cursor` is the `next` of the page before."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, Field(max_length=200)] = ""


class PairingShown(Shown):
    """Somebody let in, or waiting for it. Their code is shown to nobody: knowing it is how they are known."""

    person: str
    name: str
    state: Literal["paired", "waiting"]
    created_at: datetime
    paired_at: datetime | None
    expires_at: datetime | None


def shown(pairing: Pairing) -> PairingShown:
    """Return a pairing as the operator sees it."""
    return PairingShown(
        person=pairing.person,
        name=pairing.name,
        state="paired" if pairing.paired_at else "waiting",
        created_at=pairing.created_at,
        paired_at=pairing.paired_at,
        expires_at=pairing.expires_at,
    )


async def pair(call: Call[Code, Nothing]) -> PairingShown:
    """Let in whoever holds the code, and tell them; wrong codes are counted and soon refused unseen."""
    channel = await _channel(call)
    guesses = call.surface.guesses
    locked = guesses.locked(channel.id)
    if locked:
        wait = str(math.ceil(locked))
        raise Problem(429, "too many wrong codes; try again later", headers={"Retry-After": wait})
    async with call.core.ledger.entry("pairing") as entry:
        found = await store.pair(entry.connection, channel.id, call.body.code)
        if found is not None and found.address is not None:
            key = f"in_{call.body.code.strip().upper()}"
            await say_aside(entry, call.account, found.address, WELCOME, key=key)
    if found is None:
        guesses.failed(channel.id)
        raise not_found(
            "nobody waits with this code; codes end after an hour, and a new message makes a new one"
        )
    return shown(found)


async def list_pairings(call: Call[Nothing, PairingPage]) -> Items[PairingShown]:
    """List who is let in and who waits."""
    channel, limit = await _channel(call), call.query.limit
    async with call.surface.database.read() as connection:
        found = await store.listed(connection, channel.id, after=call.query.cursor, limit=limit + 1)
    following = found[limit - 1].person if len(found) > limit else None
    return Items[PairingShown](items=[shown(one) for one in found[:limit]], next=following)


async def unpair(call: Call[Nothing, Nothing]) -> None:
    """Let somebody in no more; with their next message they are a stranger again."""
    channel = await _channel(call)
    async with call.surface.database.begin() as connection:
        known = await store.remove(connection, channel.id, call.path["person"])
    if not known:
        raise not_found("this person is not paired with the channel")


async def _channel(call: Call[Code, Nothing] | Call[Nothing, PairingPage] | Call[Nothing, Nothing]) -> Record:
    async with call.surface.database.read() as connection:
        return await call.surface.book.get(connection, call.account, "channel", call.path["id"])
