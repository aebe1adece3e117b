"""Queue policy: what happens to input that arrives while a conversation has running or waiting turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delivery.database.engine import Connection
from gateway.records.agent import agent_config
from gateway.store.accounts import records
from gateway.store.conversations import messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.turn_state import QueueMode, TurnState
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.turns import Turn

MAX_INPUT = 200_000
"""Characters that all messages of one turn may have together."""

SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """A conversation's queue mode, and how many turns (or messages of one turn) may wait."""

    mode: QueueMode
    limit: int


async def queue_policy(connection: Connection, conversation: Conversation, *, limit: int) -> QueuePolicy:
    """Return the policy of the conversation, else of its agent, else `followup` with `limit` turns."""
    agent = await records.get_by_id(connection, conversation.agent)
    config = agent_config(agent).queue if agent is not None else None
    mode = conversation.queue_mode or (config.mode if config else QueueMode.FOLLOWUP)
    return QueuePolicy(
        mode=QueueMode(mode),
        limit=conversation.queue_limit or (config.limit if config else None) or limit,
    )


def find_mergeable(queue: Sequence[Turn], asker: str, mode: QueueMode) -> Turn | None:
    """Return the waiting turn that a message of this person is merged into (pure).

    It is always the person's own turn, and never a follow-up turn of a job.
    """
    waiting = queue[1:] if mode is QueueMode.COLLECT else queue
    mine = [
        turn for turn in waiting if turn.trigger == "message" and turn.asker == asker and is_not_started(turn)
    ]
    return mine[-1] if mine and mode in {QueueMode.COLLECT, QueueMode.INTERRUPT} else None


def is_not_started(turn: Turn) -> bool:
    """Return whether a turn waits for its first attempt, so that its input can be changed."""
    return turn.state is TurnState.QUEUED and turn.attempt == 0 and not turn.cancel


def merge_input(turn: Turn, text: str) -> str | None:
    """Return a waiting turn's input with one more message; None when that is too long."""
    whole = f"{turn.input}{SEPARATOR}{text}"
    return whole if len(whole) <= MAX_INPUT else None


async def cancel_running(connection: Connection, queue: Sequence[Turn]) -> list[str]:
    """Request the cancellation of running message turns; follow-up turns and waiting turns stay."""
    running = [turn.id for turn in queue if turn.state is TurnState.RUNNING and turn.trigger == "message"]
    for turn in running:
        await turns.request_cancel(connection, turn, reason="superseded")
    return running


async def edit_message(
    connection: Connection,
    turn: Turn,
    message: str,
    text: str,
    attachments: Sequence[Mapping[str, Any]],
) -> bool:
    """Change one message of a turn that has not started; returns False if it has."""
    rows = await messages.list_for_turn(connection, turn.id)
    texts = [text if one.id == message else one.text for one in rows]
    whole = SEPARATOR.join(one for one in texts if one)
    if not is_not_started(turn) or not await turn_queue.set_input(connection, turn, whole):
        return False
    await messages.update_content(connection, message, text, attachments)
    return True


async def delete_message(connection: Connection, turn: Turn, message: str) -> bool:
    """Take one message out of a turn that has not started; returns False if it has.

    A turn without another message is cancelled.
    """
    rows = await messages.list_for_turn(connection, turn.id)
    rest = [one.text for one in rows if one.id != message and one.text]
    if not is_not_started(turn):
        return False
    if not rest:
        return await turns.request_cancel(connection, turn.id, reason="stopped in line") is not None
    return await turn_queue.set_input(connection, turn, SEPARATOR.join(rest))
