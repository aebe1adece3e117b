"""The stream's handlers in the URL table, and the gateway's doors as its readers use them."""

from __future__ import annotations

import re

from aiohttp import web

from delivery.broker.port import Queue
from gateway.accounts.api_keys import Principal
from gateway.conversations import submission as submissions
from gateway.conversations.approvals import AlreadyDecided, NoSuchApproval
from gateway.conversations.submission import Submission
from gateway.services import Core
from gateway.store.conversations import conversations
from gateway.store.turns import turns
from gateway.web.http import attachments
from gateway.web.http.auth import Door, Key, Socket, bearer_of
from gateway.web.http.context import Surface
from gateway.web.http.route import DOOR, Call, Nothing, Route
from gateway.web.stream import sse, websocket
from gateway.web.stream.frames import Approve, Cancel, Mistaken, Send
from gateway.web.stream.readers import Accepted, Readers, Readership
from gateway.web.stream.sse import EventPage, EventQuery

READERS = web.AppKey("readers", Readers)

_OWN_NAME = re.compile(r"(?!cnv_)\w[\w.:@#+ -]{0,198}\w|\w")
"""What following may open; anything else must have been opened by saying something."""


async def open_socket(call: Call[Nothing, Nothing]) -> web.StreamResponse:
    """Speak WebSocket; the key comes in the header or in the first frame."""
    request, door = call.request, call.request.app[DOOR]
    principal = None
    if "Authorization" in request.headers:
        principal = await door.authenticate(request, bearer_of(request))
    doors = readership(call.surface, call.core, door)
    return await websocket.serve(request, doors, request.app[READERS], principal)


async def read_events(call: Call[Nothing, EventQuery]) -> web.StreamResponse:
    """Give a conversation's events: a stream of them, or a page."""
    request = call.request
    doors = readership(call.surface, call.core, request.app[DOOR])
    asked = await sse.wanted(request, doors, call.principal, call.path["id"], call.query)
    if sse.wants_stream(request):
        return await sse.server_sent(request, doors, request.app[READERS], call.principal, asked)
    return await sse.page(doors, asked)


def install(application: web.Application, surface: Surface) -> None:
    """Keep account of an application's readers, and end them when it ends."""
    readers = application[READERS] = Readers()
    surface.gatekeeper.on_revoked.append(readers.revoked)
    application.on_shutdown.append(readers.shut)
    application.cleanup_ctx.append(lambda _application: readers.watched(surface.gatekeeper.still_valid))


def readership(surface: Surface, core: Core, door: Door) -> Readership:
    """Return the doors of a socket."""

    async def find_conversation(principal: Principal, named: str) -> str | None:
        async with surface.database.read() as connection:
            found = await conversations.find(connection, principal.account, named)
        return found.id if found else None

    async def enter_conversation(principal: Principal, named: str) -> str | None:
        found = await find_conversation(principal, named)
        if found is not None or "chat" not in principal.scopes or not _OWN_NAME.fullmatch(named):
            return found
        opened = await core.intake.enter(principal.account, named)
        return opened.id if opened else None

    async def submit(principal: Principal, said: Send) -> Accepted:
        return await _submit(core, principal, said)

    async def decide(principal: Principal, decision: Approve) -> None:
        await _decide(core, principal, decision)

    async def cancel(principal: Principal, wish: Cancel) -> None:
        await _cancel(core, principal, wish)

    return Readership(
        stream=core.stream,
        authenticate=door.authenticate,
        still_valid=surface.gatekeeper.still_valid,
        find_conversation=find_conversation,
        enter_conversation=enter_conversation,
        submit=submit,
        decide=decide,
        cancel=cancel,
    )


async def _submit(core: Core, principal: Principal, said: Send) -> Accepted:
    about = {"id": said.id}
    try:
        kept = await attachments.keep_all(core, principal.account, said.attachments)
    except attachments.BadAttachment as error:
        raise Mistaken("invalid", f"{error.pointer}: {error.detail}", about) from None
    submission = Submission(
        account=principal.account,
        text=said.text,
        asker=principal.key,
        agent=said.agent,
        conversation=said.conversation,
        source="socket",
        key=said.id,
        own_count=True,
        attachments=kept,
    )
    try:
        taken = await core.intake.submit(submission)
    except submissions.Missing as error:
        raise Mistaken("not_found", str(error), about) from None
    except (submissions.WrongAgent, submissions.KeyReused) as error:
        raise Mistaken("invalid", str(error), about) from None
    except submissions.QueueFull as error:
        raise Mistaken("too_many", str(error), about) from None
    await attachments.adopt(core, principal.account, kept, conversation=taken.conversation, turn=taken.turn)
    return Accepted(turn=taken.turn, conversation=taken.conversation)


async def _decide(core: Core, principal: Principal, decision: Approve) -> None:
    about = {"approval": decision.approval}
    try:
        await core.approvals.decide(
            principal.account,
            decision.approval,
            approved=decision.decision == "approve",
            by=principal.key,
            comment=decision.comment,
        )
    except NoSuchApproval:
        raise Mistaken("not_found", "there is no such approval in this account", about) from None
    except AlreadyDecided as error:
        raise Mistaken("invalid", str(error), about) from None


async def _cancel(core: Core, principal: Principal, wish: Cancel) -> None:
    async with core.ledger.entry("turn.cancel") as entry:
        turn = await turns.find(entry.connection, principal.account, wish.turn)
        if turn is None:
            raise Mistaken("not_found", "there is no such turn in this account", {"turn": wish.turn})
        if await turns.request_cancel(entry.connection, turn.id) is not None:
            entry.wake(Queue.TURN, turn.conversation)
    core.conductor.cancel_here(turn.id)


ROUTES = (
    Route(
        method="GET",
        path="/ws",
        access=Socket(),
        handler=open_socket,
        summary="speak WebSocket: subscribe, send, approve, cancel",
        raw=True,
        hidden=True,
        tag="stream",
    ),
    Route(
        method="GET",
        path="/conversations/{id}/events",
        access=Key("read"),
        handler=read_events,
        summary="the events of a conversation, as a page or as server-sent events",
        query=EventQuery,
        gives=EventPage,
        also={503: "the broker is away"},
        tag="stream",
    ),
)
"""The stream's lines of the URL table."""
