"""Turns of heartbeats: their last answer is sent, unless it says that there is nothing to report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from delivery.chat.drafts import TurnDisplay
from gateway.agents.client_request import ClientRequest
from gateway.schedules.heartbeat import NOTHING_TO_REPORT
from gateway.store.turns.turns import Turn

DraftContext = Callable[[str, str, str], AbstractAsyncContextManager[TurnDisplay | None]]
"""Show drafts in a conversation's chats while a turn (its id, and its asker) runs."""


def may_be_silent(turn: Turn) -> bool:
    """Return whether a turn may end without a message."""
    return ClientRequest.parse(turn.request).heartbeat


def says_nothing(answer: str) -> bool:
    """Return whether an answer is empty or the word for nothing, with or without marks around it."""
    return answer.strip().strip("`*_\"'.!").strip() in {"", NOTHING_TO_REPORT}


def show_turn(turn: Turn, draft_context: DraftContext) -> AbstractAsyncContextManager[TurnDisplay | None]:
    """Return what shows a turn in its chats while it runs; nothing shows one that may be silent."""
    if may_be_silent(turn):
        return nullcontext()
    return draft_context(turn.conversation, turn.id, turn.asker)
