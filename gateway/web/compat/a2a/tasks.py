"""Tasks of A2A: a task is a turn, its context is the turn's conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from delivery.database.engine import Connection
from gateway.conversations.questions import CLIENT_TOOL
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.messages import ChatMessageRow
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turns as store
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.compat.a2a.errors import TASK_NOT_FOUND, A2aError
from gateway.web.http.route import ApiCall

ENDED = frozenset({TurnState.COMPLETED, TurnState.FAILED, TurnState.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """A task as it is now. `turn` has its id; `answers` is the turn that answers it, mostly the same."""

    turn: Turn
    answers: Turn
    context: str
    asked: Sequence[ChatMessageRow]
    replies: Sequence[ChatMessageRow]
    pending: Sequence[Approval]

    @property
    def has_ended(self) -> bool:
        """Whether the task will not change any more."""
        return self.answers.state in ENDED

    @property
    def status_since(self) -> datetime:
        """Since when the task has its status."""
        asked = self.pending[0].created_at if self.pending else None
        return self.answers.finished_at or asked or self.answers.started_at or self.answers.created_at

    @property
    def question(self) -> str:
        """What a person is asked, if the task waits for an answer."""
        return self.pending[0].command if self.pending else ""


async def load_task(call: ApiCall[Any, Any], task: str) -> TaskSnapshot:
    """Return a task of the account; raises A2aError for an unknown one."""
    async with call.context.database.read() as connection:
        turn = await store.get(connection, call.account, task)
        if turn is None:
            raise A2aError(TASK_NOT_FOUND, "there is no such task in this account")
        return await _snapshot(connection, turn)


async def load_tasks(
    connection: Connection, account: str, tasks: Sequence[str], *, history: bool, artifacts: bool
) -> list[TaskSnapshot]:
    """Return tasks of an account in this order, with their messages as far as these are wanted."""
    found = [await store.get(connection, account, task) for task in tasks]
    return [
        await _snapshot(connection, turn, history=history, artifacts=artifacts)
        for turn in found
        if turn is not None
    ]


async def _snapshot(
    connection: Connection, turn: Turn, *, history: bool = True, artifacts: bool = True
) -> TaskSnapshot:
    merged = await store.get(connection, turn.account, turn.merged_into) if turn.merged_into else None
    answers = merged or turn
    conversation = await conversations.get(connection, turn.account, turn.conversation)
    has_ended = answers.state in ENDED
    waiting = [] if has_ended else await approval_store.list_for_turn(connection, answers.id)
    return TaskSnapshot(
        turn=turn,
        answers=answers,
        context=(conversation.name if conversation else None) or turn.conversation,
        asked=await messages.list_for_turn(connection, turn.id) if history else (),
        replies=await messages.list_replies(connection, answers.id) if artifacts else (),
        pending=[one for one in waiting if one.state == "pending" and one.tool != CLIENT_TOOL],
    )
