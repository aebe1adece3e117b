"""`POST /a2a`: the methods of A2A (https://a2a-protocol.org) over JSON-RPC, in the versions 1.0 and 0.3.

A message starts a turn, so a task is durable: it continues when the client disconnects or the gateway is
killed, and `tasks/get` and `tasks/resubscribe` find it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from delivery.errors import DeliveryError
from gateway.config.sign_in_settings import KeyScope
from gateway.records.input_problems import to_problems
from gateway.web.api import turns
from gateway.web.compat.a2a.card import extended_card
from gateway.web.compat.a2a.encoder import Shape, StreamEncoder, WireFormat
from gateway.web.compat.a2a.errors import (
    METHOD_NOT_FOUND,
    PUSH_NOT_SUPPORTED,
    TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION,
    VERSION_NOT_SUPPORTED,
    A2aError,
    from_problem,
)
from gateway.web.compat.a2a.requests import ListParams, SendParams, TaskParams
from gateway.web.compat.a2a.submit import A2aCall, submit
from gateway.web.compat.a2a.task_list import list_tasks
from gateway.web.compat.a2a.tasks import load_task
from gateway.web.compat.ask import (
    ANSWER_TIMEOUT,
    STREAM_INTERRUPTED,
    SubmittedTurn,
    open_events,
    replay_events,
    turn_events,
)
from gateway.web.compat.client_calls import AnswerEvent, ClientCalls
from gateway.web.http.auth import require_scope
from gateway.web.http.problems import HttpProblem, invalid
from gateway.web.http.route import ApiCall
from gateway.web.stream.sse_writer import SseWriter, stream_sse
from gateway.web.stream.turn_events import ApprovalNeeded, TurnEnded

VERSION_HEADER = "A2A-Version"
CANCEL_WAIT = 10.0
"""Seconds to wait for the end of a cancelled turn."""

V1, V03 = WireFormat(legacy=False), WireFormat(legacy=True)
Params = TypeVar("Params", bound=BaseModel)
Answer = Shape | web.StreamResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class A2aMethod:
    """A method: the scope that a key needs, and what it does."""

    handler: Callable[[A2aCall, WireFormat], Awaitable[Answer]]
    scope: KeyScope
    streams: bool = False
    changes: bool = False


async def handle_request(call: A2aCall) -> web.StreamResponse:
    """Answer a request as JSON or as a stream."""
    try:
        answer = await _answer(call)
    except A2aError as error:
        return web.json_response(_error(call, error), headers={"Cache-Control": "no-store"})
    if isinstance(answer, web.StreamResponse):
        return answer
    return web.json_response(_envelope(call, answer), headers={"Cache-Control": "no-store"})


async def _answer(call: A2aCall) -> Answer:
    _check_version(call)
    name = call.body.method
    legacy = "/" in name
    if name.startswith("tasks/pushNotificationConfig/") or name.endswith(
        ("PushNotificationConfig", "Configs")
    ):
        raise A2aError(PUSH_NOT_SUPPORTED, "push notifications are not supported: use webhooks")
    method = METHODS.get(name)
    if method is None:
        raise A2aError(METHOD_NOT_FOUND, f"there is no method {name!r}")
    require_scope(call.principal, method.scope)
    try:
        return await method.handler(call, V03 if legacy else V1)
    except HttpProblem as problem:
        raise from_problem(problem) from None


def _check_version(call: A2aCall) -> None:
    given = call.request.headers.get(VERSION_HEADER, "").strip()
    if given and ".".join(given.split(".")[:2]) not in {"1.0", "0.3"}:
        raise A2aError(VERSION_NOT_SUPPORTED, f"{given[:20]!r} is not supported: 1.0 and 0.3 are")


async def _send(call: A2aCall, wire: WireFormat) -> Shape:
    params = _parse(call, SendParams)
    submitted = await submit(call, params)
    if params.waits:
        with suppress(TimeoutError):  # the task continues
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await _wait(call, submitted, turn_events(call, submitted))
    task = wire.task(await load_task(call, submitted.turn), history=params.configuration.historyLength)
    return task if wire.legacy else {"task": task}


async def _stream_message(call: A2aCall, wire: WireFormat) -> web.StreamResponse:
    submitted = await submit(call, _parse(call, SendParams))
    return await _stream(call, wire, submitted, turn_events(call, submitted))


async def _get(call: A2aCall, wire: WireFormat) -> Shape:
    params = _parse(call, TaskParams)
    return wire.task(await load_task(call, params.id), history=params.historyLength)


async def _list(call: A2aCall, wire: WireFormat) -> Shape:
    return await list_tasks(call, _parse(call, ListParams), wire)


async def _cancel(call: A2aCall, wire: WireFormat) -> Shape:
    params = _parse(call, TaskParams)
    task = await load_task(call, params.id)
    if task.has_ended:
        raise A2aError(TASK_NOT_CANCELABLE, "the task has ended")
    cancelling: ApiCall[Any, Any] = replace(call, path={"id": params.id})
    await turns.cancel_turn(cancelling)
    submitted = _submitted(task.turn.id, task.turn.conversation)
    with suppress(TimeoutError):  # its state shows that it still runs
        async with asyncio.timeout(CANCEL_WAIT):
            await _wait(call, submitted, turn_events(call, submitted), for_input=False)
    return wire.task(await load_task(call, params.id))


async def _resubscribe(call: A2aCall, wire: WireFormat) -> web.StreamResponse:
    task = await load_task(call, _parse(call, TaskParams).id)
    if task.has_ended:
        raise A2aError(UNSUPPORTED_OPERATION, "the task has ended: get it instead")
    submitted = _submitted(task.turn.id, task.turn.conversation)
    return await _stream(call, wire, submitted, replay_events(call, task.turn))


async def _extended_card(call: A2aCall, _wire: WireFormat) -> Shape:
    return await extended_card(call, call.query.agent)


def _submitted(turn: str, conversation: str) -> SubmittedTurn:
    return SubmittedTurn(turn=turn, conversation=conversation, agent="", after=0, created=0, repeated=True)


async def _wait(
    call: A2aCall,
    submitted: SubmittedTurn,
    events: AsyncGenerator[AnswerEvent, None],
    *,
    for_input: bool = True,
) -> None:
    """Wait until the task ends, or waits for input; raises HttpProblem, TimeoutError."""
    try:
        async with open_events(call, events, turn=submitted.turn) as received:
            async for one in received:
                if one is not None and await _is_over(call, submitted, one, for_input=for_input):
                    return
    except DeliveryError:
        raise submitted.problem(503, "the broker does not answer") from None
    raise submitted.problem(503, STREAM_INTERRUPTED)


async def _is_over(
    call: A2aCall, submitted: SubmittedTurn, event: AnswerEvent, *, for_input: bool = True
) -> bool:
    """Return whether the answer ends with an event; an approval that was decided since does not end it."""
    if isinstance(event, ApprovalNeeded) and for_input:
        pending = (await load_task(call, submitted.turn)).pending
        return event.approval in {one.id for one in pending}
    return isinstance(event, TurnEnded | ClientCalls)


async def _stream(
    call: A2aCall, wire: WireFormat, submitted: SubmittedTurn, events: AsyncGenerator[AnswerEvent, None]
) -> web.StreamResponse:
    begun = await load_task(call, submitted.turn)
    encoder = StreamEncoder(wire, begun)

    async def tell(sent: SseWriter) -> None:
        await sent.send(_envelope(call, wire.task_event(begun)))
        async with open_events(call, events, turn=submitted.turn) as received:
            over = await _write_events(call, submitted, sent, encoder, received)
        if not over:
            raise submitted.problem(503, STREAM_INTERRUPTED)
        for shape in encoder.end(await load_task(call, submitted.turn)):
            await sent.send(_envelope(call, shape))

    return await stream_sse(
        call.request, tell, lambda problem: _error(call, A2aError(-32603, problem.detail))
    )


async def _write_events(
    call: A2aCall,
    submitted: SubmittedTurn,
    writer: SseWriter,
    encoder: StreamEncoder,
    events: AsyncIterator[AnswerEvent | None],
) -> bool:
    """Send the events of a task; returns False when reading was cut."""
    async for one in events:
        if one is None:
            await writer.heartbeat()
            continue
        if await _is_over(call, submitted, one):
            return True
        for shape in encoder.encode(one):
            await writer.send(_envelope(call, shape))
    return False


def _parse(call: A2aCall, model: type[Params]) -> Params:
    try:
        return model.model_validate(call.body.params)
    except ValidationError as error:
        raise invalid(to_problems(error, call.body.params, model, below="/params")) from None


def _envelope(call: A2aCall, result: Shape) -> Shape:
    return {"jsonrpc": "2.0", "id": call.body.id, "result": result}


def _error(call: A2aCall, error: A2aError) -> Shape:
    return {"jsonrpc": "2.0", "id": call.body.id, "error": {"code": error.code, "message": str(error)}}


_SEND = A2aMethod(handler=_send, scope="chat", changes=True)
_SEND_STREAM = A2aMethod(handler=_stream_message, scope="chat", streams=True, changes=True)
_GET = A2aMethod(handler=_get, scope="read")
_LIST = A2aMethod(handler=_list, scope="read")
_CANCEL = A2aMethod(handler=_cancel, scope="chat", changes=True)
_RESUBSCRIBE = A2aMethod(handler=_resubscribe, scope="read", streams=True)
_CARD = A2aMethod(handler=_extended_card, scope="read")

METHODS: Mapping[str, A2aMethod] = {
    "SendMessage": _SEND,
    "message/send": _SEND,
    "SendStreamingMessage": _SEND_STREAM,
    "message/stream": _SEND_STREAM,
    "GetTask": _GET,
    "tasks/get": _GET,
    "ListTasks": _LIST,
    "tasks/list": _LIST,
    "CancelTask": _CANCEL,
    "tasks/cancel": _CANCEL,
    "SubscribeToTask": _RESUBSCRIBE,
    "tasks/resubscribe": _RESUBSCRIBE,
    "GetExtendedAgentCard": _CARD,
    "agent/getAuthenticatedExtendedCard": _CARD,
}
