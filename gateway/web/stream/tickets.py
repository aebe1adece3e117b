"""`POST /tickets`: a browser's permission to read one conversation's events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from delivery.database.clock import utc_now
from gateway.accounts.stream_tickets import StreamTicket
from gateway.records.fields import Name
from gateway.store.conversations import conversations
from gateway.web.http.auth import TICKET, KeyAccess
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel


class TicketCreate(RequestModel):
    """The conversation that a ticket is for, by its id or its own name."""

    conversation: Name


class TicketResponse(ResponseModel):
    """A ticket for `GET /conversations/{id}/events?ticket=`, and when it expires."""

    ticket: str
    expires: datetime


async def create_ticket(call: ApiCall[TicketCreate, NoContent]) -> TicketResponse:
    """Issue a ticket for a conversation of the account."""
    async with call.context.database.read() as connection:
        found = await conversations.get(connection, call.account, call.body.conversation)
    if found is None:
        raise not_found("there is no such conversation in this account")
    text, expires = call.context.stream_tickets.issue(
        call.account, call.principal.key, found.id, now=utc_now()
    )
    return TicketResponse(ticket=text, expires=expires)


def seconds_left(call: ApiCall[Any, Any], conversation: str) -> float | None:
    """Return the seconds for which the request's ticket opens this conversation; None without a ticket.

    Raises the 404 of an unknown conversation if the ticket is for another one.
    """
    ticket: StreamTicket | None = call.request.get(TICKET)
    if ticket is None:
        return None
    if ticket.conversation != conversation:
        raise not_found("there is no such conversation in this account")
    return max(0.0, ticket.expires - utc_now().timestamp())


ROUTES = (
    ApiRoute(
        method="POST",
        path="/tickets",
        access=KeyAccess("read"),
        handler=create_ticket,
        summary="create a ticket with which a browser reads one conversation's events",
        request_model=TicketCreate,
        response_model=TicketResponse,
        status=201,
        tag="stream",
    ),
)
"""The routes of tickets."""
