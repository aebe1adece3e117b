"""Turns as an operator looks at them: listed, the dead ones too, and asked for again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from gateway.conversations.retry import NotFailed, ask_again
from gateway.store.turn_state import GIVEN_UP, TurnState
from gateway.store.turns import turn_retries as store
from gateway.store.turns.turns import Turn
from gateway.web.http.auth import Key
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import Problem, not_found
from gateway.web.http.route import Call, Nothing, Route, Shown

SHORT = 200
"""Characters of a turn's input that a list shows."""


class TurnShown(Shown):
    """A turn as a list shows it; a dead one was given up after crashes, and nobody asked for it again."""

    id: str
    state: TurnState
    dead: bool
    conversationId: str
    agent: str
    trigger: str
    input: str
    attempt: int
    error: str | None
    retried_as: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TurnPage(Page):
    """Which turns."""

    state: TurnState | None = None
    dead: bool = False
    conversation: Annotated[str, Field(max_length=300)] | None = None


def shown(turn: Turn) -> TurnShown:
    """Return a turn as a list shows it."""
    return TurnShown(
        id=turn.id,
        state=turn.state,
        dead=(turn.error or "").startswith(GIVEN_UP) and turn.retried_as is None,
        conversationId=turn.conversation,
        agent=turn.agent,
        trigger=turn.trigger,
        input=turn.input[:SHORT],
        attempt=turn.attempt,
        error=turn.error,
        retried_as=turn.retried_as,
        created_at=turn.created_at,
        started_at=turn.started_at,
        finished_at=turn.finished_at,
    )


async def list_turns(call: Call[Nothing, TurnPage]) -> Items[TurnShown]:
    """Return the account's turns, newest first."""
    query = call.query
    async with call.surface.database.read() as connection:
        some = await store.listed(
            connection,
            call.account,
            after=query.cursor,
            limit=query.limit + 1,
            conversation=query.conversation,
            state=str(query.state) if query.state else None,
            dead=query.dead,
        )
    page, following = cut(some, query.limit)
    return Items[TurnShown](items=[shown(turn) for turn in page], next=following)


async def retry_turn(call: Call[Nothing, Nothing]) -> TurnShown:
    """Ask a failed turn's question once more; asking again shows the same new turn."""
    try:
        turn = await ask_again(call.core.ledger, call.account, call.path["id"])
    except NotFailed as error:
        raise Problem(409, f"{error}; only one that failed can be asked for again") from None
    if turn is None:
        raise not_found("there is no such turn in this account")
    return shown(turn)


ROUTES = (
    Route(
        method="GET",
        path="/turns",
        access=Key("read"),
        handler=list_turns,
        summary="list the turns; `dead=true`: given up",
        query=TurnPage,
        gives=Items[TurnShown],
        tag="turns",
    ),
    Route(
        method="POST",
        path="/turns/{id}/retry",
        access=Key("admin"),
        handler=retry_turn,
        summary="ask a failed turn's question again",
        status=202,
        gives=TurnShown,
        also={409: "the turn has not failed"},
        tag="turns",
    ),
)
"""Two lines of the URL table."""
