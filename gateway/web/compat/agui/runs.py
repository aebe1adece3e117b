"""`POST /agui`: AG-UI 1.0, for user interfaces that speak it. A thread is a conversation, a run is a turn.

A run that needs a person's decision ends with an interrupt for each approval; the run that answers them
continues the same turn. https://docs.ag-ui.com
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from gateway.agents.client_request import ClientRequest
from gateway.conversations.approvals import AlreadyDecided, ApprovalNotFound
from gateway.conversations.questions import CLIENT_TOOL, InvalidAnswer, is_question
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turns as store
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.compat.agui.encoder import AguiEncoder
from gateway.web.compat.agui.requests import (
    TEXT_ROLES,
    AgentQuery,
    AguiMessage,
    AguiResume,
    AguiSource,
    RunAgentInput,
)
from gateway.web.compat.ask import (
    STREAM_INTERRUPTED,
    ask,
    open_events,
    resume,
    turn_events,
)
from gateway.web.compat.client_calls import AnswerEvent, ClientCalls, until_client_calls
from gateway.web.compat.openai_parts import require_image
from gateway.web.compat.openai_requests import (
    join_instructions,
    last_user_input,
    last_user_messages,
    read_history,
)
from gateway.web.compat.openai_tools import to_specs
from gateway.web.compat.request_identity import run_identity
from gateway.web.http import attachments
from gateway.web.http.attachments import AttachmentCreate
from gateway.web.http.problems import HttpProblem, invalid, invalid_field, not_found
from gateway.web.http.route import ApiCall
from gateway.web.stream.sse_writer import SseWriter, stream_sse
from gateway.web.stream.turn_events import ApprovalNeeded, TurnEnded, TurnEventReader, replay_turn
from sandbox.config import ConfigProblem as Fault


async def run(call: ApiCall[RunAgentInput, AgentQuery]) -> web.StreamResponse:
    """Start a run or continue an interrupted one, and stream its events."""
    if call.body.resume:
        turn, given = await _resume(call, call.body.resume)
    else:
        turn, given = await _start(call)
    names = {spec.name for spec in to_specs(call.body.tools)}
    encoder = AguiEncoder(call.body.threadId, call.body.runId, client_tools=names)

    async def tell(sent: SseWriter) -> None:
        await sent.send(encoder.run_started(turn))
        async with open_events(call, given, turn=turn) as events:
            await _write_events(call, sent, encoder, events)

    return await stream_sse(call.request, tell, encoder.run_aborted)


async def _start(call: ApiCall[RunAgentInput, AgentQuery]) -> tuple[str, AsyncGenerator[AnswerEvent, None]]:
    messages = [message for message in call.body.messages if message.role in TEXT_ROLES]
    inputs = [message.to_input() for message in messages]
    now = messages[len(messages) - len(last_user_messages(inputs)) :]
    files = [file for message in now for file in _files(message)]
    request = ClientRequest(
        instructions=join_instructions(inputs, call.body.shown_context),
        tools=tuple(to_specs(call.body.tools)),
    )
    if not files:
        agent = call.query.agent or ""
        continued = await resume(call, inputs, agent=agent, pointer="/messages", request=request)
        if continued is not None:
            return continued.turn, turn_events(call, continued)
    given = last_user_input(inputs, pointer="/messages", has_files=bool(files))
    approvals = await ask(
        call,
        agent=call.query.agent,
        conversation=call.body.threadId,
        text=given.text,
        files=files,
        pointer="/messages",
        identity=run_identity(call.body.threadId, call.body.runId, repr(call.body.messages)),
        request=request,
        history=read_history(inputs),
    )
    return approvals.turn, turn_events(call, approvals)


def _files(message: AguiMessage) -> list[AttachmentCreate]:
    unread = next((part for part in message.parts if part.type != "text" and part.source is None), None)
    if unread is not None:
        detail = f"a part of the type {unread.type[:40]!r} has neither bytes nor a url: leave it out"
        raise invalid_field("/messages", detail)
    sources = [(part.type, part.source) for part in message.parts if part.source is not None]
    return [_file(place, kind, source) for place, (kind, source) in enumerate(sources, 1)]


def _file(index: int, kind: str, source: AguiSource) -> AttachmentCreate:
    ending = source.mimeType.rpartition("/")[2].partition("+")[0] or "bin"
    name = f"{kind[:60]}-{index}.{ending[:20]}"
    if source.type == "data":
        if kind == "image" or source.mimeType.startswith("image/"):
            require_image(source.value, source.mimeType, "/messages")
        return AttachmentCreate(name=name, type=source.mimeType[:100], content=source.value)
    if len(source.value) > attachments.MAX_URL_LENGTH:
        raise invalid(
            [Fault(pointer="/messages", detail="the url must be a link to a stored file of this gateway")]
        )
    return AttachmentCreate(name=name, url=source.value)


async def _resume(
    call: ApiCall[RunAgentInput, AgentQuery], resumes: Sequence[AguiResume]
) -> tuple[str, AsyncGenerator[AnswerEvent, None]]:
    """Decide the approvals as the interrupts were answered, and follow the turn after them.

    An approval that was already decided keeps its decision.
    """
    approvals = [await _require_approval(call, answer.interruptId) for answer in resumes]
    if len({approval.turn for approval in approvals}) != 1:
        raise invalid([Fault(pointer="/resume", detail="all interrupts must be of one run")])
    for place, (answer, approval) in enumerate(zip(resumes, approvals, strict=True)):
        await _decide(call, answer, approval, f"/resume/{place}/payload")
    turn = approvals[0].turn
    given = replay_turn(
        call.services.stream,
        approvals[0].conversation,
        TurnEventReader(turn=turn),
        account=call.account,
        expired=False,
    )
    received = until_client_calls(given, ())
    return turn, _after_approvals(received, {approval.id for approval in approvals})


async def _decide(
    call: ApiCall[RunAgentInput, AgentQuery], answer: AguiResume, approval: Approval, pointer: str
) -> None:
    approvals, by = call.services.approvals, call.principal.key
    try:
        if is_question(approval.tool) and answer.answer is not None:
            await approvals.answer(call.account, approval.id, answer.answer, by=by)
        else:
            await approvals.decide(
                call.account, approval.id, approved=answer.approved, by=by, comment=answer.comment
            )
    except InvalidAnswer as error:
        raise invalid_field(pointer, str(error)) from None
    except (AlreadyDecided, ApprovalNotFound):
        return


async def _require_approval(call: ApiCall[RunAgentInput, AgentQuery], approval_id: str) -> Approval:
    async with call.context.database.read() as connection:
        found = await approval_store.get(connection, call.account, approval_id)
    if found is None:
        raise not_found("there is no such interrupt in this account")
    return found


async def _after_approvals(
    events: AsyncGenerator[AnswerEvent, None], approvals: Collection[str]
) -> AsyncGenerator[AnswerEvent, None]:
    """Yield the events after these approvals were requested, and the end in any case."""
    before = set(approvals)
    async with aclosing(events) as received:
        async for one in received:
            if not before or isinstance(one, TurnEnded):
                yield one
            elif isinstance(one, ApprovalNeeded):
                before.discard(one.approval)


async def _write_events(
    call: ApiCall[Any, Any],
    writer: SseWriter,
    encoder: AguiEncoder,
    events: AsyncIterator[AnswerEvent | None],
) -> None:
    async for one in events:
        if one is None:
            await writer.heartbeat()
        elif isinstance(one, TurnEnded):
            turn = await _require_turn(call, one.turn)
            return await _send_all(writer, encoder.run_ended(turn))
        elif isinstance(one, ClientCalls):
            return await _send_all(writer, encoder.run_paused(one))
        elif isinstance(one, ApprovalNeeded):
            if waiting := await _pending_approvals(call, one.approval):
                return await _send_all(writer, encoder.run_interrupted(waiting))
        else:
            await _send_all(writer, encoder.encode(one))
    raise HttpProblem(503, STREAM_INTERRUPTED)


async def _send_all(writer: SseWriter, shapes: Iterator[dict[str, Any]]) -> None:
    for shape in shapes:
        await writer.send(shape)


async def _require_turn(call: ApiCall[Any, Any], turn: str) -> Turn:
    async with call.context.database.read() as connection:
        found = await store.get(connection, call.account, turn)
    if found is None:
        raise not_found("the turn was deleted")
    return found


async def _pending_approvals(call: ApiCall[Any, Any], approval: str) -> list[Approval]:
    """Return the pending approvals of an approval's turn."""
    async with call.context.database.read() as connection:
        found = await approval_store.get(connection, call.account, approval)
        approvals = await approval_store.list_for_turn(connection, found.turn) if found else []
    return [one for one in approvals if one.state == "pending" and one.tool != CLIENT_TOOL]
