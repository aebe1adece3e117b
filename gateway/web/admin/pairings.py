"""Pairings over HTTP: the users that an operator approved, and those who wait for approval."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictStr

from gateway.conversations.direct_messages import send_direct
from gateway.store.accounts.records import Record
from gateway.store.conversations import pairings as store
from gateway.store.conversations.pairings import Pairing
from gateway.web.http.pagination import ListPage
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

WELCOME = "You are in."


class PairingCode(RequestModel):
    """The code that the bot gave to an unknown sender."""

    code: Annotated[StrictStr, Field(min_length=1, max_length=40)]


class PairingQuery(RequestModel):
    """A page of the list; `cursor` is the `next` of the previous page."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, Field(max_length=200)] = ""


class PairingResponse(ResponseModel):
    """A user that is paired or waits for it. The code is not returned: it proves who the user is."""

    person: str
    name: str
    state: Literal["paired", "waiting"]
    created_at: datetime
    paired_at: datetime | None
    expires_at: datetime | None


def to_response(pairing: Pairing) -> PairingResponse:
    """Return a pairing as a response."""
    return PairingResponse(
        person=pairing.person,
        name=pairing.name,
        state="paired" if pairing.paired_at else "waiting",
        created_at=pairing.created_at,
        paired_at=pairing.paired_at,
        expires_at=pairing.expires_at,
    )


async def pair(call: ApiCall[PairingCode, NoContent]) -> PairingResponse:
    """Approve the pairing with this code and notify the user; 429 after too many wrong codes."""
    channel = await _require_channel(call)
    guesses = call.context.pairing_lockout
    locked = guesses.locked_for(channel.id)
    if locked:
        wait = str(math.ceil(locked))
        raise HttpProblem(429, "too many wrong codes; try again later", headers={"Retry-After": wait})
    async with call.services.transactions.begin("pairing") as tx:
        found = await store.pair(tx.connection, channel.id, call.body.code)
        if found is not None and found.address is not None:
            key = f"in_{call.body.code.strip().upper()}"
            await send_direct(tx, call.account, found.address, WELCOME, key=key)
    if found is None:
        guesses.record_failure(channel.id)
        raise not_found("no pairing has this code; codes expire after an hour: send the bot a new message")
    return to_response(found)


async def list_pairings(call: ApiCall[NoContent, PairingQuery]) -> ListPage[PairingResponse]:
    """List approved and pending pairings."""
    channel, limit = await _require_channel(call), call.query.limit
    async with call.context.database.read() as connection:
        found = await store.list_for_channel(connection, channel.id, after=call.query.cursor, limit=limit + 1)
    following = found[limit - 1].person if len(found) > limit else None
    return ListPage[PairingResponse](items=[to_response(one) for one in found[:limit]], next=following)


async def unpair(call: ApiCall[NoContent, NoContent]) -> None:
    """Revoke a pairing; the user's next message is from an unknown sender again."""
    channel = await _require_channel(call)
    async with call.context.database.begin() as connection:
        known = await store.delete_pairing(connection, channel.id, call.path["person"])
    if not known:
        raise not_found("this person is not paired with the channel")


async def _require_channel(
    call: ApiCall[PairingCode, NoContent] | ApiCall[NoContent, PairingQuery] | ApiCall[NoContent, NoContent],
) -> Record:
    async with call.context.database.read() as connection:
        return await call.context.records.get(connection, call.account, "channel", call.path["id"])
