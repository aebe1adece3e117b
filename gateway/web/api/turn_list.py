"""Lists of turns, including dead-lettered ones, and their retry."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from gateway.conversations import retry
from gateway.conversations.retry import TurnNotFailed
from gateway.store.turn_state import DEAD_LETTER_PREFIX, TurnState
from gateway.store.turns import turn_retries as store
from gateway.store.turns.turns import Turn
from gateway.web.http.auth import KeyAccess
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel

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
            conversation=query.conversation,
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
)
"""The routes of turn lists."""
