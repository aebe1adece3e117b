"""`/agents/{id}/ui`: the AI SDK's chat transport, with streams that can be resumed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from aiohttp import web

from gateway.agents.client_request import ClientRequest
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.turns import turns as store
from gateway.store.turns.turns import Turn
from gateway.web.compat.ask import (
    STREAM_INTERRUPTED,
    SubmittedTurn,
    ask,
    open_events,
    replay_events,
    turn_deleted,
    turn_events,
)
from gateway.web.compat.client_calls import AnswerEvent, ClientCalls, until_client_calls
from gateway.web.compat.openai_requests import join_instructions, last_user_input, read_history
from gateway.web.compat.request_identity import RequestIdentity, digest
from gateway.web.compat.ui.chunks import UiEncoder, error
from gateway.web.compat.ui.messages import UiChatCreate
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, NoContent
from gateway.web.stream.sse_writer import SseWriter, stream_sse
from gateway.web.stream.turn_events import TurnEnded

VERSION_HEADER = "x-vercel-ai-ui-message-stream"
HEADERS = {VERSION_HEADER: "v1"}


async def start_stream(call: ApiCall[UiChatCreate, NoContent]) -> web.StreamResponse:
    """Answer the chat's last message, and stream the answer; the same message again joins its turn."""
    body, inputs = call.body, call.body.inputs
    given = last_user_input(inputs, pointer="/messages")
    submitted = await ask(
        call,
        agent=call.path["id"],
        conversation=body.id,
        text=given.text,
        files=given.files,
        pointer="/messages",
        identity=_identity(call, given.text),
        request=ClientRequest(instructions=join_instructions(inputs)),
        history=read_history(inputs),
    )
    return await _stream(call, submitted, turn_events(call, submitted))


def _identity(call: ApiCall[UiChatCreate, NoContent], text: str) -> RequestIdentity | None:
    """Return the identity of a message by its id; None if the request has a key, or regenerates an answer."""
    message = call.body.messages[-1].id
    if call.idempotency_key is not None or call.body.trigger != "submit-message" or not message:
        return None
    return RequestIdentity(source="ui", key=digest(call.body.id, message, text))


async def resume_stream(call: ApiCall[NoContent, NoContent]) -> web.StreamResponse:
    """Stream the running answer of a chat from its beginning; 204 if there is none."""
    turn = await _running_turn(call)
    if turn is None:
        return web.Response(status=204)
    submitted = SubmittedTurn(
        turn=turn.id, conversation=turn.conversation, agent=turn.agent, after=0, created=0
    )
    return await _stream(call, submitted, until_client_calls(replay_events(call, turn), ()))


async def _running_turn(call: ApiCall[NoContent, NoContent]) -> Turn | None:
    async with call.context.database.read() as connection:
        agent = await records.get(connection, call.account, "agent", call.path["id"])
        if agent is None:
            raise not_found("there is no such agent in this account")
        found = await conversations.get(connection, call.account, call.path["chat"])
        if found is None or found.agent != agent.id:
            return None
        running = await store.list_open(connection, found.id)
    asked = [turn for turn in running if turn.trigger == "message" and not turn.cancel]
    return asked[-1] if asked else None


async def _stream(
    call: ApiCall[Any, Any], submitted: SubmittedTurn, events: AsyncGenerator[AnswerEvent, None]
) -> web.StreamResponse:
    encoder = UiEncoder(submitted.turn, submitted.conversation)

    async def tell(sent: SseWriter) -> None:
        for chunk in encoder.started():
            await sent.send(chunk)
        async with open_events(call, events, turn=submitted.turn) as received:
            end = await _write_events(sent, encoder, received)
        if end is None:
            raise submitted.problem(503, STREAM_INTERRUPTED)
        for chunk in encoder.ended(await _require_turn(call, submitted, end)):
            await sent.send(chunk)
        await sent.send_done()

    return await stream_sse(call.request, tell, lambda problem: error(problem.detail), headers=HEADERS)


async def _write_events(
    writer: SseWriter, encoder: UiEncoder, events: AsyncIterator[AnswerEvent | None]
) -> TurnEnded | ClientCalls | None:
    """Send the answer's events; returns its end, or None when reading was cut."""
    async for one in events:
        if isinstance(one, TurnEnded | ClientCalls):
            return one
        if one is None:
            await writer.heartbeat()
            continue
        for chunk in encoder.encode(one):
            await writer.send(chunk)
    return None


async def _require_turn(
    call: ApiCall[Any, Any], submitted: SubmittedTurn, end: TurnEnded | ClientCalls
) -> Turn:
    turn = end.turn if isinstance(end, TurnEnded) else submitted.turn
    async with call.context.database.read() as connection:
        found = await store.get(connection, call.account, turn)
    if found is None:
        raise turn_deleted(turn)
    return found
