"""Calls of a client's tools: where an answer ends because of them, and how their results continue it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from delivery.database.engine import Connection
from gateway.agents.client_request import ClientRequest
from gateway.conversations.approvals import AlreadyDecided
from gateway.conversations.questions import ANSWERED, CLIENT_TOOL, InvalidAnswer
from gateway.conversations.submissions.submission import Submission
from gateway.store.conversations import conversations, messages
from gateway.store.turn_state import FINAL, TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turn_requests
from gateway.store.turns import turns as turn_store
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.api import turns
from gateway.web.compat import openai_ids
from gateway.web.compat.openai_messages import InputMessage
from gateway.web.compat.openai_parts import PartFiles, check_file_count, placed_parts, read_files, save_files
from gateway.web.compat.openai_requests import UserInput
from gateway.web.http.problems import HttpProblem, invalid_field
from gateway.web.http.route import ApiCall
from gateway.web.stream.turn_events import ClientToolCalled, TurnEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCalls:
    """The turn waits until the client returns the results of these calls."""

    calls: Sequence[ClientToolCalled]
    seq: int


RESULTS = "results"
"""The source of requests with results of a client's tools."""

AnswerEvent = TurnEvent | ClientCalls
"""An event of one answer, which is a turn or a part of one between calls of the client's tools."""


async def until_client_calls(
    events: AsyncGenerator[TurnEvent, None], answered: Sequence[str]
) -> AsyncGenerator[AnswerEvent, None]:
    """Yield a turn's events after these calls were made, up to the next calls of the client's tools."""
    before, calls = set(answered), list[ClientToolCalled]()
    async with aclosing(events) as received:
        async for event in received:
            if not isinstance(event, ClientToolCalled):
                if not before:
                    yield event
            elif event.approval in answered:
                before.discard(event.approval)
            elif not before:
                calls.append(event)
                if event.is_last:
                    yield ClientCalls(calls=calls, seq=event.seq)
                    return


async def answer_calls(
    call: ApiCall[Any, Any],
    sent: Sequence[InputMessage],
    results: Sequence[InputMessage],
    *,
    pointer: str,
    request: ClientRequest,
    message: UserInput | None = None,
) -> Sequence[Approval]:
    """Give a turn the results of its client's tools, all that it waits for, and the message after them.

    `results` are those of the messages that the client `sent`. The turn goes on with the `request`, and the
    files of the message come with the last result. Returns all calls of their round, in order: a person can
    have answered some of them. The same results again change nothing. Raises HttpProblem.
    """
    given = {_require_call(one, pointer): one for one in results}
    files = {id_: read_files(placed_parts(sent, [one], pointer)) for id_, one in given.items()}
    found = sorted(await _load(call, given), key=lambda one: (one.state == "pending", one.id))
    if len({one.turn for one in found}) > 1:
        raise invalid_field(pointer, "the results belong to calls of different turns")
    async with call.context.database.read() as connection:
        approvals = await store.list_for_turn(connection, found[0].turn)
    missing = [
        openai_ids.from_approval(one.id)
        for one in approvals
        if one.tool == CLIENT_TOOL and one.state == "pending" and one.id not in given
    ]
    if missing:
        raise invalid_field(pointer, f"the results of these calls are missing too: {', '.join(missing)}")
    saved = await _save_files(call, files, message, pointer)
    rounds = to_rounds(approvals)
    answered = next(calls for calls in reversed(rounds) if any(one.id in given for one in calls))
    if any(one.state == "pending" for one in found):
        await _replace_request(call, found[0].turn, request, rounds)
    for one in found:
        if message is not None and one is found[-1]:
            # The last result continues the turn, which then has to find the message.
            await _queue_message(call, one, message.text, message_key(results))
        await _answer(call, one, given[one.id].text, saved[one.id], pointer)
    return answered


async def _replace_request(
    call: ApiCall[Any, Any], turn: str, request: ClientRequest, rounds: Sequence[Sequence[Approval]]
) -> None:
    """Let a turn go on with what the request says that has the results of the last round of calls.

    Earlier responses of the turn still repeat what their own requests said.
    """
    answered = rounds[-1]
    following = replace(
        request,
        called_tools=tuple(dict.fromkeys(one.args.get("tool", one.args["name"]) for one in answered)),
        required_after=int((answered[0].usage or {}).get("requests", 0)),
    )
    async with call.context.database.begin() as connection:
        before = ClientRequest.parse(await turn_requests.get_locked(connection, turn))
        following = before.followed_by(following, round_endings(rounds))
        await turn_requests.set_request(connection, turn, following.to_json() or {})


async def delete_part(call: ApiCall[Any, Any], turn: Turn, after: str) -> None:
    """Delete one response of a turn: the one after the call whose id ends so, or the first one.

    The last response of a conversation without a name takes the conversation with it. The turn ends if the
    response is its newest one.
    """
    async with call.context.database.begin() as connection:
        conversation = await conversations.get(connection, call.account, turn.conversation)
        request = ClientRequest.parse(await turn_requests.get_locked(connection, turn.id))
        request = replace(request, deleted_responses=(*request.deleted_responses, after))
        await turn_requests.set_request(connection, turn.id, request.to_json() or {})
        rounds = to_rounds(await store.list_for_turn(connection, turn.id))
        continued = [calls for calls in rounds if any(one.state == ANSWERED for one in calls)]
        endings = ["", *round_endings(continued)]
        left = set(endings).difference(request.deleted_responses)
        alone = not left and await turn_requests.count_turns(connection, turn.conversation) == 1
    if alone and conversation is not None and conversation.name is None and conversation.channel is None:
        await call.services.conversation_deletion.delete(call.account, turn.conversation)
    elif after == endings[-1] and turn.state not in FINAL:
        await turns.cancel_turn(replace(call, path={"id": turn.id}))


async def _save_files(
    call: ApiCall[Any, Any], results: Mapping[str, PartFiles], message: UserInput | None, pointer: str
) -> dict[str, list[dict[str, Any]]]:
    """Store the files of results, and of the message after them, and return them by the calls."""
    groups = [*results.values(), *([message] if message is not None else [])]
    check_file_count(groups, pointer)
    saved = await save_files(call, groups, pointer)
    found = dict(zip(results, saved, strict=False))
    if message is not None:
        found[max(results)] += saved[-1]
    return found


def message_key(results: Sequence[InputMessage]) -> str:
    """Return the key of the message that follows these results, which names it once."""
    return f"{results[-1].call} message"


async def are_awaited(call: ApiCall[Any, Any], results: Sequence[InputMessage], text: str) -> bool:
    """Return whether a turn waits for these results, or got them with the same message before.

    If not, they are a part of the history that the client sends.
    """
    ids = [openai_ids.to_approval(one.call or "") for one in results]
    async with call.context.database.read() as connection:
        found = [await store.get(connection, call.account, one) for one in ids if one is not None]
        known = await conversations.get_recorded_event(
            connection, account=call.account, source=RESULTS, event_key=message_key(results)
        )
        said = await messages.get_by_id(connection, known[0]) if known and known[0] else None
    if any(one is None or one.tool != CLIENT_TOOL for one in found) or len(found) < len(results):
        return False
    return any(one is not None and one.state == "pending" for one in found) or (
        said is not None and said.text == text
    )


def are_history(sent: Sequence[InputMessage], results: Sequence[InputMessage]) -> bool:
    """Return whether results are of calls that another server made, and that the messages have too."""
    calls = {one.id for message in sent for one in message.calls}
    return all(one.call in calls and openai_ids.to_approval(one.call or "") is None for one in results)


def to_rounds(approvals: Sequence[Approval]) -> list[list[Approval]]:
    """Return the calls of a turn's client's tools in groups that were made together, each in order.

    Ids do not have that order: those of the same millisecond are random.
    """
    calls = [one for one in approvals if one.tool == CLIENT_TOOL]
    number, numbered = 0, []
    for one in sorted(calls, key=lambda call: (call.created_at, call.args["index"])):
        number += one.args["index"] == 0
        numbered.append((number, one))
    return [[one for _, one in group] for _, group in groupby(numbered, key=lambda pair: pair[0])]


def round_endings(rounds: Sequence[Sequence[Approval]]) -> list[str]:
    """Return the ends of the ids of the responses that follow these rounds of calls."""
    return [openai_ids.ending(calls[-1].id) for calls in rounds]


async def _waits_for_client(connection: Connection, turn: str) -> bool:
    """Return whether a turn waits for results of its client's tools, and for nothing else."""
    pending = [one for one in await store.list_for_turn(connection, turn) if one.state == "pending"]
    return bool(pending) and all(one.tool == CLIENT_TOOL for one in pending)


async def cancel_abandoned(call: ApiCall[Any, Any], conversation: str, *, before: str) -> None:
    """Cancel turns that wait for results of their client only, because it sent a message instead.

    They are those that are queued before the message's turn, so that a repeated request does the same.
    """
    async with call.context.database.read() as connection:
        queue = await turn_store.list_open(connection, conversation)
        ids = [turn.id for turn in queue]
        earlier = queue[: ids.index(before)] if before in ids else []
        waiting = [turn for turn in earlier if turn.state is TurnState.WAITING]
        abandoned = [turn.id for turn in waiting if await _waits_for_client(connection, turn.id)]
    for turn in abandoned:
        await turns.cancel_turn(replace(call, path={"id": turn}))


async def _queue_message(call: ApiCall[Any, Any], approval: Approval, text: str, key: str) -> None:
    submission = Submission(
        account=call.account,
        text=text,
        asker=call.principal.key,
        conversation=approval.conversation,
        source=RESULTS,
        key=key,
        steers=True,
    )
    await turns.queue_turn(call, submission)


async def _answer(
    call: ApiCall[Any, Any], approval: Approval, text: str, files: Sequence[Mapping[str, Any]], pointer: str
) -> None:
    by, approvals = call.principal.key, call.services.approvals
    try:
        await approvals.answer(call.account, approval.id, text, by=by, files=files)
    except InvalidAnswer as error:
        raise invalid_field(pointer, str(error)) from None
    except AlreadyDecided as error:
        ended = error.decided.state != ANSWERED
        detail = "the turn has ended without this result" if ended else "this call has another result already"
        raise HttpProblem(409, f"{openai_ids.from_approval(approval.id)}: {detail}") from None


def _require_call(result: InputMessage, pointer: str) -> str:
    approval = openai_ids.to_approval(result.call or "")
    if approval is None:
        raise invalid_field(pointer, f"there is no call {result.call!r} that waits for a result")
    return approval


async def _load(call: ApiCall[Any, Any], approvals: Collection[str]) -> list[Approval]:
    async with call.context.database.read() as connection:
        found = [await store.get(connection, call.account, one) for one in approvals]
    known = [one for one in found if one is not None and one.tool == CLIENT_TOOL]
    if len(known) < len(approvals):
        raise HttpProblem(404, "there is no such call of a tool in this account")
    return known
