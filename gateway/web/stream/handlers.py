"""The stream's routes, and what they ask the gateway's services for."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from delivery.broker.port import WorkQueue
from delivery.database.engine import DatabaseUnavailable
from delivery.events import outbox
from delivery.events.read_barrier import wait_until_published
from gateway.accounts.api_keys import Principal
from gateway.conversations.approvals import AlreadyDecided, ApprovalNotFound
from gateway.conversations.questions import InvalidAnswer
from gateway.conversations.submissions import submission as submissions
from gateway.conversations.submissions.submission import Submission
from gateway.files.storage.storage_quota import MESSAGE_BYTES, StorageFull
from gateway.ingress.commands.chat_commands import parse
from gateway.services import Services
from gateway.store.conversations import conversations
from gateway.store.turns import turns
from gateway.web.http import attachments
from gateway.web.http.auth import Authenticator, SocketAccess, TicketAccess, bearer_token, key_client
from gateway.web.http.context import WebContext
from gateway.web.http.route import AUTHENTICATOR, ApiCall, ApiRoute, NoContent
from gateway.web.stream import sse, subprotocols, tickets, websocket
from gateway.web.stream.frames import ApproveFrame, CancelFrame, ProtocolError, SendFrame
from gateway.web.stream.readers import READERS
from gateway.web.stream.services import StreamServices, SubmittedMessage
from gateway.web.stream.sse import EventPage, EventQuery

PUBLISHED_SECONDS = 2.0
"""Seconds that a page waits for recorded events to be published; it has what is there after that."""

_NEW_CONVERSATION_NAME = re.compile(r"(?!cnv_)\w[\w.:@#+ -]{0,198}\w|\w")
"""Names of conversations that a subscription may create; others need a message first."""


async def open_socket(call: ApiCall[NoContent, NoContent]) -> web.StreamResponse:
    """Serve a WebSocket; the key is in the header, in a subprotocol or in the first frame."""
    request, authenticator = call.request, call.request.app[AUTHENTICATOR]
    principal, key = None, subprotocols.offered_key(request)
    if key is None and "Authorization" in request.headers:
        key = bearer_token(request)
    if key is not None:
        principal = await authenticator.authenticate(request, key)
    services = stream_services(call.context, call.services, authenticator)
    return await websocket.serve(request, services, request.app[READERS], principal)


async def read_events(call: ApiCall[NoContent, EventQuery]) -> web.StreamResponse:
    """Return a conversation's events as server-sent events or as a page."""
    request = call.request
    services = stream_services(call.context, call.services, request.app[AUTHENTICATOR])
    asked = await sse.parse_request(request, services, call.principal, call.path["id"], call.query)
    seconds = tickets.seconds_left(call, asked.conversation)
    if sse.wants_stream(request):
        readers = request.app[READERS]
        return await sse.serve_sse(request, services, readers, call.principal, asked, seconds=seconds)
    return await sse.serve_page(services, asked)


def stream_services(context: WebContext, services: Services, authenticator: Authenticator) -> StreamServices:
    """Return the services that a stream connection uses."""

    async def find_conversation(principal: Principal, named: str) -> str | None:
        async with context.database.read() as connection:
            found = await conversations.get(connection, principal.account, named)
        return found.id if found else None

    async def enter_conversation(principal: Principal, named: str) -> str | None:
        found = await find_conversation(principal, named)
        if found is not None or "chat" not in principal.scopes or not _NEW_CONVERSATION_NAME.fullmatch(named):
            return found
        opened = await services.submissions.get_or_create(principal.account, named)
        return opened.id if opened else None

    async def submit(principal: Principal, said: SendFrame) -> SubmittedMessage:
        if not said.literal and not said.attachments and parse(said.text) is not None:
            return await _execute(services, principal, said)
        return await _submit(services, principal, said)

    async def decide(principal: Principal, decision: ApproveFrame) -> None:
        await _decide(services, principal, decision)

    async def cancel(principal: Principal, wish: CancelFrame) -> None:
        await _cancel(services, principal, wish)

    return StreamServices(
        stream=services.stream,
        authenticate=authenticator.authenticate,
        count_frame=lambda principal: authenticator.rate_limiter.try_acquire(key_client(principal)),
        wait_until_published=_read_barrier(context, services),
        published_seq=_published_seq(context),
        find_conversation=find_conversation,
        get_or_create_conversation=enter_conversation,
        submit=submit,
        decide=decide,
        cancel=cancel,
    )


def _read_barrier(context: WebContext, services: Services) -> Callable[[str, str], Awaitable[bool]]:
    def wait(account: str, conversation: str) -> Awaitable[bool]:
        return wait_until_published(
            context.database, services.stream, conversation, account=account, timeout=PUBLISHED_SECONDS
        )

    return wait


def _published_seq(context: WebContext) -> Callable[[str], Awaitable[int]]:
    async def find(conversation: str) -> int:
        with suppress(DatabaseUnavailable):  # the next event shows what is missing
            async with context.database.read() as connection:
                found = await outbox.last_position(connection, conversation)
                return found[1] if found else 0
        return 0

    return find


async def _submit(services: Services, principal: Principal, frame: SendFrame) -> SubmittedMessage:
    about = {"id": frame.id}
    try:
        saved = await attachments.save_all(services, principal.account, frame.attachments)
    except attachments.InvalidAttachment as error:
        raise ProtocolError("invalid", f"{error.pointer}: {error.detail}", about) from None
    submission = Submission(
        account=principal.account,
        text=frame.text,
        asker=principal.key,
        agent=frame.agent,
        conversation=frame.conversation,
        source="socket",
        key=frame.id,
        conversation_scoped_key=True,
        attachments=saved,
    )
    try:
        async with services.file_services.quota.reserve(
            principal.account, len(frame.text.encode()), at_least=MESSAGE_BYTES
        ):
            accepted = await services.submissions.submit(submission)
    except submissions.UnknownTarget as error:
        raise ProtocolError("not_found", str(error), about) from None
    except (submissions.WrongAgent, submissions.IdempotencyKeyReused) as error:
        raise ProtocolError("invalid", str(error), about) from None
    except StorageFull as error:
        raise ProtocolError("invalid", str(error), about) from None
    except submissions.QueueFull as error:
        raise ProtocolError("too_many", str(error), about) from None
    await attachments.assign(
        services, principal.account, saved, conversation=accepted.conversation, turn=accepted.turn
    )
    return SubmittedMessage(turn=accepted.turn, conversation=accepted.conversation)


async def _execute(services: Services, principal: Principal, frame: SendFrame) -> SubmittedMessage:
    named = frame.conversation
    opened = await services.submissions.get_or_create(principal.account, named) if named else None
    if opened is None:
        raise ProtocolError("not_found", "a command needs a conversation", {"id": frame.id})
    done = await services.client_commands.execute(
        principal.account, opened.id, frame.text, by=principal.key, key=f"{principal.key} {frame.id}"
    )
    return SubmittedMessage(
        turn=None,
        conversation=opened.id,
        command=done.name if done else None,
        reply=done.reply if done else None,
    )


async def _decide(services: Services, principal: Principal, frame: ApproveFrame) -> None:
    about = {"approval": frame.approval}
    try:
        if frame.answer is not None:
            await services.approvals.answer(principal.account, frame.approval, frame.answer, by=principal.key)
            return
        await services.approvals.decide(
            principal.account,
            frame.approval,
            approved=frame.decision == "approve",
            by=principal.key,
            comment=frame.comment,
        )
    except ApprovalNotFound:
        raise ProtocolError("not_found", "there is no such approval in this account", about) from None
    except (AlreadyDecided, InvalidAnswer) as error:
        raise ProtocolError("invalid", str(error), about) from None


async def _cancel(services: Services, principal: Principal, frame: CancelFrame) -> None:
    async with services.transactions.begin("turn.cancel") as tx:
        turn = await turns.get(tx.connection, principal.account, frame.turn)
        if turn is None:
            raise ProtocolError("not_found", "there is no such turn in this account", {"turn": frame.turn})
        if await turns.request_cancel(tx.connection, turn.id) is not None:
            tx.wake(WorkQueue.TURN, turn.conversation, account=turn.account)
    services.turn_worker.cancel_local(turn.id)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/ws",
        access=SocketAccess(),
        handler=open_socket,
        summary="open a WebSocket: subscribe, send, approve, cancel",
        raw=True,
        hidden=True,
        tag="stream",
    ),
    ApiRoute(
        method="GET",
        path="/conversations/{id}/events",
        access=TicketAccess("read"),
        handler=read_events,
        summary="read a conversation's events as a page or as server-sent events",
        query_model=EventQuery,
        response_model=EventPage,
        error_responses={503: "NATS is unavailable"},
        tag="stream",
    ),
)
"""The routes of streams."""
