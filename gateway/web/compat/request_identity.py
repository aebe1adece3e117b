"""The identity of a request: which earlier request it repeats, so that both follow the same turn.

    Idempotency-Key                   the caller's own key
    threadId, runId and messages      a run of AG-UI is one turn
    x-stainless-retry-count           an SDK repeats a request on its own, without a key
    User-Agent: … ai-sdk/…, codex…    the AI SDK and Codex repeat a request without a key or a count

An SDK's retry has no key, so its digest names it: the same API key, path and body. It repeats the last
request with this digest that was not answered. A first attempt (count 0) is a request of its own; it is
not begun if its client has gone before that.

These two do not count. Their request is a retry if the earlier one has lost its connection, and its turn
runs or has completed within RECENT_SECONDS.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from delivery.database.clock import utc_now
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from gateway.web.http.connection import RequestAbandoned, is_abandoned
from gateway.web.http.route import ApiCall

RETRY_COUNT = "x-stainless-retry-count"
"""The header in which OpenAI's SDKs count their own retries of a request, from 0."""

SDK_SOURCE = "sdk"

RETRIED_WITHIN = timedelta(hours=1)
"""The longest time between an SDK's first attempt and a retry that belongs to it."""


UNCOUNTED = ("ai-sdk/", "codex")
"""What the User-Agent of a client contains that repeats requests and does not count: the AI SDK, Codex."""

RECENT_SECONDS = 60.0
"""Seconds after the end of a turn in which such a client's retry of its request may arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIdentity:
    """A key of a source. `is_first`: the request repeats nothing."""

    source: str
    key: str
    is_first: bool = False


async def identify(call: ApiCall[Any, Any]) -> RequestIdentity | None:
    """Return the identity of a request by its Idempotency-Key, else by an SDK's count of retries."""
    if call.idempotency_key is not None:
        return RequestIdentity(source="api", key=call.idempotency_key)
    count = call.request.headers.get(RETRY_COUNT)
    if count is None and not _may_be_uncounted(call.request.headers.get("User-Agent", "")):
        return None
    key = digest(call.principal.key, call.request.path, call.body.model_dump_json())
    is_first = count.strip() == "0" if count is not None else not await _may_repeat(call, key)
    if is_first and is_abandoned(call.request):
        raise RequestAbandoned  # its client repeats it, and the retry may have begun a turn before
    if not is_first:
        async with call.context.database.begin() as connection:
            await conversations.delete_event_key(
                connection, call.account, SDK_SOURCE, key, before=utc_now() - RETRIED_WITHIN
            )
    return RequestIdentity(source=SDK_SOURCE, key=key, is_first=is_first)


def _may_be_uncounted(user_agent: str) -> bool:
    return any(name in user_agent for name in UNCOUNTED)


async def _may_repeat(call: ApiCall[Any, Any], key: str) -> bool:
    """Return whether a request may be an uncounted retry of an earlier one; remember its connection."""
    earlier = call.context.open_requests.get(key)
    call.context.open_requests[key] = call.request
    if earlier is not None and not is_abandoned(earlier):
        return False
    async with call.context.database.read() as connection:
        recorded = await conversations.get_recorded_event(
            connection, account=call.account, source=SDK_SOURCE, event_key=key
        )
        turn = await turns.get(connection, call.account, recorded[1]) if recorded and recorded[1] else None
    if turn is None or turn.finished_at is None:
        return turn is not None
    is_recent = utc_now() - turn.finished_at < timedelta(seconds=RECENT_SECONDS)
    return is_recent and turn.state is TurnState.COMPLETED


async def mark_answered(call: ApiCall[Any, Any], identity: RequestIdentity | None, turn: str) -> None:
    """Forget an SDK's request once it is answered, unless its client has gone; a later one is new."""
    if identity is None or identity.source != SDK_SOURCE or is_abandoned(call.request):
        return
    async with call.context.database.begin() as connection:
        await conversations.delete_event_key(connection, call.account, SDK_SOURCE, identity.key, turn=turn)


def run_identity(thread: str, run: str, messages: str) -> RequestIdentity:
    """Return the identity of a run of AG-UI; with other messages it is another run."""
    return RequestIdentity(source="agui", key=digest(thread, run, messages))


def digest(*parts: str) -> str:
    """Return the digest that names these parts together."""
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
