"""Run an edited message again: the conversation leaves the branch with its first answer and begins another.

Nothing is erased. The agent forgets the message and all that followed it, and a new turn answers the new
text in their place. The earlier turns stay visible as a branch.
"""

from __future__ import annotations

from collections.abc import Sequence

from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType
from gateway.agents.history import UnreadableHistory
from gateway.conversations.submission import Submission, Submissions, Submitted
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import branches, turns
from gateway.store.turns.branches import Branch
from gateway.store.turns.turns import Turn
from gateway.turns.undo import BUSY, effective_entries, forget_entries


class CannotRerun(Exception):
    """The turn cannot be run again; the text is for people."""


async def rerun_turn(
    transactions: Transactions,
    submissions: Submissions,
    account: str,
    turn_id: str,
    *,
    text: str | None,
    by: str,
) -> Submitted | None:
    """Queue a turn with another text (None: the same) in a turn's place; None if there is no such turn.

    A repetition with the same text returns the turn of the first request. Raises CannotRerun, QueueFull.
    """
    async with transactions.begin("intake.submit") as tx:
        turn = await turns.get(tx.connection, account, turn_id)
        conversation = await conversations.get_by_id(tx.connection, turn.conversation) if turn else None
        if turn is None or conversation is None:
            return None
        wanted = turn.input if text is None else text
        left = await branches.list_for_conversation(tx.connection, conversation.id)
        earlier = await _repeated(tx, turn, left, wanted)
        if earlier is not None:
            return earlier
        await _check(tx, turn, conversation, left)
        forgotten = await _forgotten_turns(tx, turn, conversation)
        return await _run_again(tx, submissions, turn, conversation, forgotten, text=wanted, by=by)


async def _repeated(tx: Transaction, turn: Turn, left: Sequence[Branch], text: str) -> Submitted | None:
    for branch in left:
        if branch.turn == turn.id and branch.rerun is not None:
            rerun = await turns.get(tx.connection, turn.account, branch.rerun)
            if rerun is not None and rerun.input == text:
                message = rerun.message or ""
                return Submitted(
                    turn=rerun.id, conversation=rerun.conversation, message=message, repeated=True
                )
    return None


async def _check(tx: Transaction, turn: Turn, conversation: Conversation, left: Sequence[Branch]) -> None:
    if turn.trigger != "message" or turn.merged_into is not None:
        raise CannotRerun("only a turn that answers one message can be run again")
    if any(turn.id in branch.turns for branch in left):
        raise CannotRerun("the turn belongs to a branch that was left; run the newest version again")
    if conversation.handover_by is not None:
        raise CannotRerun("a person handles the conversation: give it back to the agent first")
    if await turns.list_open(tx.connection, conversation.id):
        raise CannotRerun(BUSY)
    # A worker that holds the conversation can complete no turn with the old history afterwards.
    await conversations.raise_fence(tx.connection, conversation.id)
    if await turns.list_open(tx.connection, conversation.id):
        raise CannotRerun(BUSY)


async def _forgotten_turns(tx: Transaction, turn: Turn, conversation: Conversation) -> Sequence[str]:
    """Have the agent forget a turn and all that followed it; return the turns, oldest first."""
    try:
        entries = await effective_entries(tx, conversation.id)
    except UnreadableHistory as error:
        raise CannotRerun(str(error)) from None
    found: list[str] = []
    for entry in reversed(entries):
        known = await turns.get(tx.connection, turn.account, entry.turn or "")
        if known is None or (known.created_at, known.id) < (turn.created_at, turn.id):
            break
        if entry.replaces:
            raise CannotRerun("the message is part of a summary of the conversation; it cannot be run again")
        found.append(known.id)
    if found:
        await forget_entries(tx, conversation, len(found))
    return [turn.id, *(one for one in reversed(found) if one != turn.id)]


async def _run_again(
    tx: Transaction,
    submissions: Submissions,
    turn: Turn,
    conversation: Conversation,
    forgotten: Sequence[str],
    *,
    text: str,
    by: str,
) -> Submitted:
    submission = Submission(
        account=turn.account,
        text=text,
        asker=by,
        conversation=conversation.id,
        attachments=await messages.list_attachments(tx.connection, turn.id),
        notify=True,
        own_turn=True,
        origin=turn.origin,
        context=turn.context,
        request=turn.request,
    )
    submitted = await submissions.enqueue(tx, conversation, submission)
    await branches.add(
        tx.connection,
        account=turn.account,
        conversation=conversation.id,
        turns=forgotten,
        rerun=submitted.turn,
        by=by,
    )
    data = {"by": by, "turns": list(forgotten), "text": turn.input, "rerun": submitted.turn}
    tx.emit(Event.now(EventType.TURN_UNDONE, conversation.id, data, turn=turn.id))
    return submitted
