"""Heartbeats: schedules whose turns end without a message if there is nothing to report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from delivery.chat.drafts import TurnDisplay
from gateway.agents.client_request import ClientRequest
from gateway.store.turns.turns import Turn

DraftContext = Callable[[str, str, str], AbstractAsyncContextManager[TurnDisplay | None]]
"""Show drafts in a conversation's chats while a turn (its id, and its asker) runs."""

NOTHING_TO_REPORT = "HEARTBEAT_OK"
"""The answer of a heartbeat's turn that is not sent."""

INSTRUCTIONS = (
    "This turn was started by a schedule that checks something regularly. If there is nothing that people "
    f"should read now, answer {NOTHING_TO_REPORT} and nothing else: then no message is sent. Otherwise only "
    "your last message is sent."
)

REMINDERS_ARE_SENT = "a reminder is always sent: leave heartbeat out, or use kind turn"


def heartbeat_request() -> dict[str, Any] | None:
    """Return what a heartbeat adds to its turn."""
    return ClientRequest(instructions=INSTRUCTIONS, heartbeat=True).to_json()


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
