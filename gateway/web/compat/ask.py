"""Start a turn over HTTP and return its answer in the same request, complete or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.rendering import ACCOUNT_DELETED, CONVERSATION_DELETED
from delivery.errors import DeliveryError
from gateway.agents.client_request import ClientRequest
from gateway.agents.history import HistoryEntry
from gateway.conversations.notices import quoted
from gateway.conversations.questions import is_question
from gateway.conversations.submissions.submission import Submission
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals
from gateway.store.turns import turns as store
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.api import turns
from gateway.web.compat.client_calls import (
    RESULTS,
    AnswerEvent,
    ClientCalls,
    answer_calls,
    are_awaited,
    are_history,
    cancel_abandoned,
    until_client_calls,
)
from gateway.web.compat.openai_messages import InputMessage
from gateway.web.compat.openai_requests import (
    last_tool_results,
    last_user_input,
    last_user_messages,
    without_instructions,
)
from gateway.web.compat.request_identity import RequestIdentity, identify
from gateway.web.http import attachments
from gateway.web.http.attachments import AttachmentCreate, InvalidAttachment, invalid_attachment
from gateway.web.http.auth import KEY_ACCESS
from gateway.web.http.problems import NO_RETRY, HttpProblem
from gateway.web.http.route import ApiCall
from gateway.web.stream.readers import KEY_REVOKED, READERS, SCOPES_REDUCED, StreamReader
from gateway.web.stream.turn_events import (
    HEARTBEAT_SECONDS,
    TurnEnded,
    TurnEvent,
    TurnEventReader,
    follow_turn,
    replay_turn,
    with_heartbeat,
)

ANSWER_TIMEOUT = 590.0
"""Seconds to wait for an answer that is not streamed: less than OpenAI's SDKs, which wait ten minutes."""

CLIENT_TIMEOUTS = ("x-stainless-read-timeout", "x-stainless-timeout")
"""The headers in which OpenAI's SDKs say how many seconds they wait for a response."""

CLIENT_MARGIN = 5.0
"""Seconds before the end of a client's time at which it gets the reason why there is no answer."""

APPROVAL_PENDING = "approval_pending"
"""The code of the problem of an answer that waits for a person."""

STREAM_INTERRUPTED = "the gateway is stopping"

REPLAY_ONLY_AFTER = 60.0
"""Seconds after a turn's end, when all its stored events are in the stream."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedTurn:
    """A queued turn; `after` is a position in its conversation's stream before it.

    `repeated`: an earlier request with this `identity` queued it. `answered` are the calls whose results
    the request has; its answer begins after them. `shows_files`: links to files are below the answer.
    """

    turn: str
    conversation: str
    agent: str
    after: int
    created: int
    identity: RequestIdentity | None = None
    repeated: bool = False
    answered: Sequence[str] = ()
    shows_files: bool = True

    @property
    def last_answered(self) -> str | None:
        """The last call whose result the request has."""
        return self.answered[-1] if self.answered else None

    def problem(self, status: int, detail: str, **more: Any) -> HttpProblem:
        """Return a problem that names the turn; a client may retry if the retry follows the same turn."""
        about = {"turnId": self.turn, "conversationId": self.conversation, **more}
        headers = {} if self.identity is not None and status >= HTTPStatus.INTERNAL_SERVER_ERROR else NO_RETRY
        text = f"{detail.removesuffix('.')}; the turn is at /status/{self.turn}"
        return HttpProblem(status, text, headers=headers, members=about)


def unix_time() -> int:
    """Return a time as Unix seconds."""
    return int(time.time())


async def ask(
    call: ApiCall[Any, Any],
    *,
    agent: str | None,
    conversation: str | None,
    text: str,
    files: Sequence[AttachmentCreate],
    pointer: str,
    places: Sequence[str] = (),
    identity: RequestIdentity | None = None,
    request: ClientRequest | None = None,
    history: HistoryEntry | None = None,
) -> SubmittedTurn:
    """Queue a turn; raises HttpProblem. `pointer` is the field of the request that has the files, and
    `places` are the fields of the first files. `history` is that of a conversation that it begins.

    A request that repeats an earlier one gets its turn. `identity` replaces the one that its headers give.
    """
    identity, request = identity or await identify(call), request or ClientRequest()
    after = await _last_position(call, conversation)
    try:
        stored = await attachments.save_all(call.services, call.account, files)
    except InvalidAttachment as error:
        raise invalid_attachment(error, pointer, places) from None
    submission = Submission(
        account=call.account,
        text=text,
        asker=call.principal.key,
        agent=agent,
        conversation=conversation,
        source=identity.source if identity else "api",
        key=identity.key if identity else None,
        is_first=identity.is_first if identity else False,
        attachments=stored,
        notify=True,
        own_turn=request.changes_turn,
        request=request.to_json(),
        history=history,
    )
    accepted = await turns.queue_turn(call, submission)
    if conversation is not None:
        await cancel_abandoned(call, accepted.conversation, before=accepted.turn)
    return SubmittedTurn(
        turn=accepted.turn,
        conversation=accepted.conversation,
        agent=agent or "",
        after=after,
        created=unix_time(),
        identity=identity,
        repeated=accepted.repeated,
        shows_files=request.output_format is None,
    )


async def resume(
    call: ApiCall[Any, Any],
    sent: Sequence[InputMessage],
    *,
    agent: str,
    pointer: str,
    request: ClientRequest,
) -> SubmittedTurn | None:
    """Give a turn the results of its client's tools at the end of the messages, and follow it from there.

    A message after them is for the same turn, which goes on with the `request`. Returns None if no turn waits
    for results among the messages; raises HttpProblem.
    """
    results, said = last_tool_results(sent), last_user_messages(without_instructions(sent))
    if not results or (not said and are_history(sent, results)):
        return None
    message = last_user_input(sent, pointer=pointer) if said else None
    if message is not None and not await are_awaited(call, results, message.text):
        return None
    answered = await answer_calls(call, sent, results, pointer=pointer, request=request, message=message)
    turns.log_turn(call, answered[0].turn, answered[0].conversation)
    return SubmittedTurn(
        turn=answered[0].turn,
        conversation=answered[0].conversation,
        agent=agent,
        after=0,
        created=unix_time(),
        identity=RequestIdentity(source=RESULTS, key=answered[-1].id),
        repeated=True,
        answered=[one.id for one in answered],
    )


async def _last_position(call: ApiCall[Any, Any], conversation: str | None) -> int:
    if conversation is None:
        return 0
    async with call.context.database.read() as connection:
        known = await conversations.get(connection, call.account, conversation)
    try:
        return (await call.services.stream.bounds(known.id, account=call.account)).last_seq if known else 0
    except DeliveryError:
        raise HttpProblem(503, "NATS does not answer; try again", headers={"Retry-After": "2"}) from None


@asynccontextmanager
async def open_events(
    call: ApiCall[Any, Any],
    events: AsyncGenerator[Item, None],
    *,
    turn: str,
    interval: float = HEARTBEAT_SECONDS,
) -> AsyncGenerator[AsyncGenerator[Item | None, None]]:
    """Yield the events of a turn while the key is valid and the gateway runs; None is a heartbeat.

    The events raise HttpProblem when the key is revoked or loses the scope of the request, and at a heartbeat
    after the turn was deleted.
    """
    with call.request.app[READERS].register(call.principal, scope=call.request[KEY_ACCESS].scope) as reader:
        async with (
            aclosing(with_heartbeat(events, reader.closed, interval=interval)) as received,
            aclosing(_while_permitted(call, received, turn, reader)) as permitted,
        ):
            yield permitted


async def _while_permitted(
    call: ApiCall[Any, Any], events: AsyncGenerator[Item | None, None], turn: str, reader: StreamReader
) -> AsyncGenerator[Item | None, None]:
    async for one in events:
        if one is None and await _is_deleted(call, turn):
            raise turn_deleted(turn)
        yield one
    if reader.is_revoked:
        raise HttpProblem(401, KEY_REVOKED, headers={"WWW-Authenticate": "Bearer"})
    if reader.is_reduced:
        raise HttpProblem(403, SCOPES_REDUCED)


async def _is_deleted(call: ApiCall[Any, Any], turn: str) -> bool:
    """Return whether a turn does not exist any more; False if the database does not answer."""
    try:
        async with call.context.database.read() as connection:
            return await store.get(connection, call.account, turn) is None
    except DatabaseUnavailable:
        return False


def turn_events(call: ApiCall[Any, Any], submitted: SubmittedTurn) -> AsyncGenerator[AnswerEvent, None]:
    """Return the events of a turn, queued now or by an earlier request, as far as the answer goes."""
    if submitted.repeated:
        return until_client_calls(_repeated_events(call, submitted), submitted.answered)
    events = follow_turn(
        call.services.stream,
        submitted.conversation,
        TurnEventReader(turn=submitted.turn, shows_files=submitted.shows_files),
        account=call.account,
        after=submitted.after,
    )
    return until_client_calls(events, ())


async def _repeated_events(
    call: ApiCall[Any, Any], submitted: SubmittedTurn
) -> AsyncGenerator[TurnEvent, None]:
    async with call.context.database.read() as connection:
        turn = await store.get(connection, call.account, submitted.turn)
    if turn is None:
        raise turn_deleted(submitted.turn)
    async with aclosing(replay_events(call, turn)) as events:
        async for event in events:
            yield event


def replay_events(call: ApiCall[Any, Any], turn: Turn) -> AsyncGenerator[TurnEvent, None]:
    """Return the events of an earlier turn from its beginning."""
    over = turn.finished_at is not None and time.time() - turn.finished_at.timestamp() > REPLAY_ONLY_AFTER
    shows_files = ClientRequest.parse(turn.request).output_format is None
    reader = TurnEventReader(turn=turn.id, shows_files=shows_files)
    return replay_turn(call.services.stream, turn.conversation, reader, account=call.account, expired=over)


async def collect_answer(
    call: ApiCall[Any, Any], submitted: SubmittedTurn, on_event: Callable[[AnswerEvent], None]
) -> TurnEnded | ClientCalls:
    """Follow an answer to its end and return the end; raises HttpProblem after the time limit."""
    seconds = answer_timeout(call.request.headers)
    try:
        async with (
            asyncio.timeout(seconds),
            open_events(call, turn_events(call, submitted), turn=submitted.turn) as events,
        ):
            async for one in events:
                if isinstance(one, TurnEnded | ClientCalls):
                    return one
                if one is not None:
                    on_event(one)
    except TimeoutError:
        raise await _unanswered(call, submitted, seconds) from None
    except DeliveryError:
        raise submitted.problem(503, "the broker does not answer") from None
    raise submitted.problem(503, STREAM_INTERRUPTED)


def answer_timeout(headers: Mapping[str, str]) -> float:
    """Return for how many seconds to wait for an answer: less than the client does, if it says how long."""
    found = [headers[name] for name in CLIENT_TIMEOUTS if name in headers]
    with suppress(ValueError):
        stated = [float(one) for one in found]
        return min([ANSWER_TIMEOUT, *(one - min(CLIENT_MARGIN, one / 10) for one in stated if one > 0)])
    return ANSWER_TIMEOUT


async def _unanswered(call: ApiCall[Any, Any], submitted: SubmittedTurn, seconds: float) -> HttpProblem:
    """Return the problem of an answer that is late; it names the approvals that the turn waits for."""
    late = f"no answer within {seconds:g} seconds"
    turn = await existing_turn(call, submitted, submitted.turn)
    async with call.context.database.read() as connection:
        found = await approvals.list_for_turn(connection, turn.merged_into or turn.id)
    pending = [one for one in found if one.state == "pending"]
    if not pending:
        return submitted.problem(504, late)
    requests = " and ".join(map(_deciding_request, pending))
    return submitted.problem(
        504,
        f"{late}, because the turn waits for a person. It goes on after {requests}",
        code=APPROVAL_PENDING,
        approvals=[{"id": one.id, "question": one.command, "url": f"/approvals/{one.id}"} for one in pending],
    )


def _deciding_request(approval: Approval) -> str:
    """Return the request that decides an approval, for people."""
    body = '{"answer": …}' if is_question(approval.tool) else '{"decision": "approve"} (or "deny")'
    return f"POST /approvals/{approval.id} {body} for {quoted(approval.command)}"


async def existing_turn(call: ApiCall[Any, Any], submitted: SubmittedTurn, turn: str) -> Turn:
    """Return a turn as it is now; raises HttpProblem for one that was deleted."""
    async with call.context.database.read() as connection:
        row = await store.get(connection, call.account, turn)
    if row is None or row.cancel_why in {ACCOUNT_DELETED, CONVERSATION_DELETED}:
        raise turn_deleted(submitted.turn)
    return row


async def completed_turn(call: ApiCall[Any, Any], submitted: SubmittedTurn, turn: str) -> Turn:
    """Return a completed turn; raises HttpProblem for one that failed or was cancelled."""
    row = await existing_turn(call, submitted, turn)
    if row.state is TurnState.CANCELLED:
        raise submitted.problem(424, f"the turn was cancelled: {row.cancel_why or 'no reason was given'}")
    if row.state is not TurnState.COMPLETED:
        raise submitted.problem(424, f"the turn {row.state}: {row.error or 'no reason was given'}")
    return row


def turn_deleted(turn: str) -> HttpProblem:
    """Return the problem for a turn that has no status any more."""
    return HttpProblem(424, f"the turn {turn} was deleted with its conversation", headers=NO_RETRY)
