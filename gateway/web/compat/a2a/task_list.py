"""Lists of tasks: those that have not ended first, then by the time of their end."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from delivery.events.event import rfc3339
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_list as store
from gateway.store.turns.turn_list import ListedTurn
from gateway.web.compat.a2a.encoder import Shape, WireFormat
from gateway.web.compat.a2a.requests import ListParams
from gateway.web.compat.a2a.tasks import load_tasks
from gateway.web.http.problems import invalid_field
from gateway.web.http.route import ApiCall

MAX_LISTED = 1000
"""Tasks of an account, or of a context, that lists reach back to."""

Place = tuple[str, str]
"""Where a task is in the list, which begins with the largest: when it ended, and its id."""

_OPEN = "open"
"""It is larger than each time: a task that has not ended can change at any moment."""


async def list_tasks(call: ApiCall[Any, Any], params: ListParams, wire: WireFormat) -> Shape:
    """Return a page of the account's tasks; raises HttpProblem for a token that is none."""
    before = _to_place(params.pageToken) if params.pageToken else None
    async with call.context.database.read() as connection:
        context = None
        if params.contextId is not None:
            found = await conversations.get(connection, call.account, params.contextId)
            context = found.id if found is not None else ""
        listed = await store.list_newest(connection, call.account, conversation=context, limit=MAX_LISTED)
        chosen = _choose(listed, params, wire)
        following = [one for one in chosen if before is None or _place(one) < before]
        page = following[: params.pageSize]
        tasks = await load_tasks(
            connection,
            call.account,
            [one.id for one in page],
            history=params.historyLength != 0,
            artifacts=params.includeArtifacts,
        )
    shapes = [
        wire.task(one, history=params.historyLength, artifacts=params.includeArtifacts) for one in tasks
    ]
    return {
        "tasks": shapes,
        "nextPageToken": _to_token(_place(page[-1])) if len(following) > len(page) else "",
        "pageSize": params.pageSize,
        "totalSize": len(chosen),
    }


def _choose(listed: Sequence[ListedTurn], params: ListParams, wire: WireFormat) -> list[ListedTurn]:
    state, since = params.status, params.updated_since
    wanted = [
        one
        for one in listed
        if (not state or state.endswith("UNSPECIFIED") or wire.state(TurnState(one.state)) == state)
        and (since is None or one.finished_at is None or one.finished_at >= since)
    ]
    return sorted(wanted, key=_place, reverse=True)


def _place(one: ListedTurn) -> Place:
    return rfc3339(one.finished_at) if one.finished_at is not None else _OPEN, one.id


def _to_token(place: Place) -> str:
    return base64.urlsafe_b64encode("|".join(place).encode()).decode()


def _to_place(token: str) -> Place:
    try:
        moment, separator, task = base64.urlsafe_b64decode(token.encode()).decode().partition("|")
    except ValueError:
        separator = ""
    if not separator:
        raise invalid_field("/params/pageToken", "it is no nextPageToken of an earlier page")
    return moment, task
