"""The line: what becomes of input that arrives while a conversation's turns are at work or waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delivery.database.engine import Connection
from gateway.records.agent import agent_config
from gateway.store.accounts import records
from gateway.store.conversations import messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.turn_state import Mode, TurnState
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.turns import Turn

LONGEST_INPUT = 200_000
"""Characters that the messages of one turn may have together."""

BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A conversation's queue mode, and how many turns (or messages of one turn) may wait."""

    mode: Mode
    limit: int


async def policy_of(connection: Connection, conversation: Conversation, *, limit: int) -> Policy:
    """Return what the conversation says, else its agent, else `limit` turns that wait in order."""
    agent = await records.by_id(connection, conversation.agent)
    said = agent_config(agent).queue if agent is not None else None
    mode = conversation.queue_mode or (said.mode if said else Mode.FOLLOWUP)
    return Policy(
        mode=Mode(mode),
        limit=conversation.queue_limit or (said.limit if said else None) or limit,
    )


def joinable(line: Sequence[Turn], asker: str, mode: Mode) -> Turn | None:
    """Return the waiting turn that a message of this person becomes part of (pure).

    Only a person's own turn: what one types must never count as another's. Jobs' follow-ups stand alone.
    """
    waiting = line[1:] if mode is Mode.COLLECT else line
    mine = [
        turn for turn in waiting if turn.trigger == "message" and turn.asker == asker and is_untouched(turn)
    ]
    return mine[-1] if mine and mode in {Mode.COLLECT, Mode.INTERRUPT} else None


def is_untouched(turn: Turn) -> bool:
    """Say whether a turn waits for its first attempt, so that what it asks can still be changed."""
    return turn.state is TurnState.QUEUED and turn.attempt == 0 and not turn.cancel


def joined(turn: Turn, text: str) -> str | None:
    """Return a waiting turn's input with one more message; None when that is too long."""
    whole = f"{turn.input}{BETWEEN}{text}"
    return whole if len(whole) <= LONGEST_INPUT else None


async def supersede(connection: Connection, line: Sequence[Turn]) -> list[str]:
    """Ask for what people's turns are at work on to end; a job's follow-up and an open question stay."""
    running = [turn.id for turn in line if turn.state is TurnState.RUNNING and turn.trigger == "message"]
    for turn in running:
        await turns.request_cancel(connection, turn, why="superseded")
    return running


async def reword(connection: Connection, turn: Turn, message: str, text: str) -> bool:
    """Change one message of a turn that has not begun; False when it has, and nothing was changed."""
    spoken = await messages.of_turn(connection, turn.id)
    whole = BETWEEN.join(text if one.id == message else one.text for one in spoken)
    if not is_untouched(turn) or not await turn_queue.set_input(connection, turn, whole):
        return False
    await messages.change_text(connection, message, text)
    return True
