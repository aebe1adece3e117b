"""Lists of turns, including dead-lettered ones, their retry, and running a message again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StrictStr

from gateway.conversations import retry
from gateway.conversations.commands import branching
from gateway.conversations.commands.branching import CannotRerun
from gateway.conversations.retry import TurnNotFailed
from gateway.conversations.submissions.submission import QueueFull
from gateway.store.turn_state import DEAD_LETTER_PREFIX, TurnState
from gateway.store.turns import turn_retries as store
from gateway.store.turns.turns import Turn
from gateway.web.api.conversations import filter_by
from gateway.web.http.auth import KeyAccess
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel

INPUT_PREVIEW_LENGTH = 200
"""Characters of a turn's input that a list shows."""


class TurnResponse(ResponseModel):
    """A turn as a list item; `dead` means dead-lettered after crashes and not retried.

    `next_at` is the time of the next attempt of a turn that waits for it, and `error` then the reason.
    """

    id: str
    state: TurnState
    dead: bool
    conversationId: str
    agent: str
    trigger: str
    input: str
    attempt: int
    error: str | None
    next_at: datetime | None
    retried_as: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TurnQuery(PageQuery):
    """Which turns."""

    state: TurnState | None = None
    dead: bool = False
    conversation: Annotated[str, Field(max_length=300)] | None = None


def to_response(turn: Turn) -> TurnResponse:
    """Return a turn as a list item."""
    return TurnResponse(
        id=turn.id,
        state=turn.state,
        dead=(turn.error or "").startswith(DEAD_LETTER_PREFIX) and turn.retried_as is None,
        conversationId=turn.conversation,
        agent=turn.agent,
        trigger=turn.trigger,
        input=turn.input[:INPUT_PREVIEW_LENGTH],
        attempt=turn.attempt,
        error=turn.error,
        next_at=turn.next_at if turn.is_delayed else None,
        retried_as=turn.retried_as,
        created_at=turn.created_at,
        started_at=turn.started_at,
        finished_at=turn.finished_at,
    )


async def list_turns(call: ApiCall[NoContent, TurnQuery]) -> ListPage[TurnResponse]:
    """Return the account's turns, newest first."""
    query = call.query
    async with call.context.database.read() as connection:
        some = await store.list_for_account(
            connection,
            call.account,
            after=query.cursor,
            limit=query.limit + 1,
            conversation=await filter_by(connection, call.account, query.conversation),
            state=str(query.state) if query.state else None,
            dead=query.dead,
        )
    page, following = paginate(some, query.limit)
    return ListPage[TurnResponse](items=[to_response(turn) for turn in page], next=following)


async def retry_turn(call: ApiCall[NoContent, NoContent]) -> TurnResponse:
    """Retry a failed turn once (a repeat returns the same new turn), or end a turn's wait for a retry."""
    try:
        turn = await retry.retry_turn(call.services.transactions, call.account, call.path["id"])
    except TurnNotFailed as error:
        raise HttpProblem(
            409, f"{error}; only a turn that failed or waits for a retry can be retried"
        ) from None
    if turn is None:
        raise not_found("there is no such turn in this account")
    return to_response(turn)


class TurnRerunRequest(RequestModel):
    """The new text of the message; without one it is run again as it was."""

    text: Annotated[StrictStr, Field(min_length=1, max_length=200_000)] | None = None


class TurnRerun(ResponseModel):
    """The turn that runs in the place of the first one, which is a branch now."""

    turnId: str
    conversationId: str
    statusUrl: str


async def rerun_turn(call: ApiCall[TurnRerunRequest, NoContent]) -> TurnRerun:
    """Run a message again, edited or not: a branch begins before it; a repeat returns the same new turn."""
    try:
        queued = await branching.rerun_turn(
            call.services.transactions,
            call.services.submissions,
            call.account,
            call.path["id"],
            text=call.body.text,
            by=call.principal.key,
        )
    except (CannotRerun, QueueFull) as error:
        raise HttpProblem(409, str(error)) from None
    if queued is None:
        raise not_found("there is no such turn in this account")
    base = (call.context.public_url or "").rstrip("/")
    return TurnRerun(
        turnId=queued.turn, conversationId=queued.conversation, statusUrl=f"{base}/status/{queued.turn}"
    )


ROUTES = (
    ApiRoute(
        method="GET",
        path="/turns",
        access=KeyAccess("read"),
        handler=list_turns,
        summary="list the turns; `dead=true`: dead-lettered ones",
        query_model=TurnQuery,
        response_model=ListPage[TurnResponse],
        tag="turns",
    ),
    ApiRoute(
        method="POST",
        path="/turns/{id}/retry",
        access=KeyAccess("chat"),
        handler=retry_turn,
        summary="retry a failed turn, or one that waits for its next attempt",
        status=202,
        response_model=TurnResponse,
        error_responses={409: "the turn has not failed and does not wait for a retry"},
        tag="turns",
    ),
    ApiRoute(
        method="POST",
        path="/turns/{id}/rerun",
        access=KeyAccess("chat"),
        handler=rerun_turn,
        summary="run a message again, edited or not; the earlier answer stays as a branch",
        request_model=TurnRerunRequest,
        response_model=TurnRerun,
        optional_body=True,
        status=202,
        error_responses={409: "a turn is open, or the message is in a summary or a branch that was left"},
        tag="turns",
    ),
)
"""The routes of turn lists."""
