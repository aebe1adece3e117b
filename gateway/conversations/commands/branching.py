"""Branches of a conversation: take the last exchange back (`/undo`), or run an edited message again.

Nothing is erased: a row of the history takes back the rows before it, the messages stay, and the event
`turn.undone` says which turns the agent no longer knows of. Run again, a message has a new turn in the place
of the first one. The turns that were left are recorded as a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType
from gateway.agents.history import HistoryEntry, UnreadableHistory, decode_entry, encode_entry
from gateway.conversations.notices import quoted
from gateway.conversations.submissions.submission import Submission, Submitted
from gateway.conversations.submissions.submissions import Submissions
from gateway.store.conversations import conversations, histories, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import branches, turns
from gateway.store.turns.branches import Branch
from gateway.store.turns.turns import Turn

BUSY = "Something is running or waits for its turn; `/stop` ends it."
NOTHING = "There is nothing to take back."
SUMMARISED = (
    "The last exchange is part of a summary of the conversation and cannot be undone. "
    "Use `/new` to start a new conversation."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """An entry of a history: its turn, and whether it replaces all earlier ones."""

    turn: str | None
    replaces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """The last message of a person and what followed it: the turns, newest first, and the message."""

    turns: tuple[str, ...]
    text: str
    is_summarised: bool


async def undo_last_exchange(tx: Transaction, conversation: Conversation, *, by: str) -> str:
    """Take back the last exchange, and return the reply to the person `by`."""
    if await turns.list_open(tx.connection, conversation.id):
        return BUSY
    # A worker that holds the conversation can complete no turn with the old history afterwards.
    await conversations.raise_fence(tx.connection, conversation.id)
    if await turns.list_open(tx.connection, conversation.id):
        return BUSY
    try:
        exchange = await _last_exchange(tx, conversation)
    except UnreadableHistory as error:
        return str(error)
    if exchange is None:
        return NOTHING
    if exchange.is_summarised:
        return SUMMARISED
    first = exchange.turns[-1]
    await delete_entries(tx, conversation, len(exchange.turns))
    undone = [turn for turn in reversed(exchange.turns) if turn]
    if undone:
        await branches.add(
            tx.connection,
            account=conversation.account,
            conversation=conversation.id,
            turns=undone,
            rerun=None,
            by=by,
        )
    data = {"by": by, "turns": list(reversed(exchange.turns)), "text": exchange.text}
    tx.emit(Event.now(EventType.TURN_UNDONE, conversation.id, data, turn=first))
    return (
        f"Taken back: {quoted(exchange.text)}. It is no longer in the agent's history; files "
        "and other effects of commands stay as they are."
    )


async def delete_entries(tx: Transaction, conversation: Conversation, count: int) -> None:
    """Take the last entries out of what the agent's next turn gets; the rows stay."""
    await histories.append(
        tx.connection,
        account=conversation.account,
        conversation=conversation.id,
        turn=None,
        body=encode_entry(HistoryEntry(messages=(), undoes=count)),
    )


async def effective_entries(tx: Transaction, conversation: str) -> list[StoredEntry]:
    """Return the entries that the agent's next turn gets, oldest first; raises UnreadableHistory."""
    return _effective(await histories.list_with_turns(tx.connection, conversation))


async def _last_exchange(tx: Transaction, conversation: Conversation) -> _Exchange | None:
    entries = await effective_entries(tx, conversation.id)
    undone: list[str] = []
    for entry in reversed(entries):
        if entry.replaces:
            return _Exchange(turns=(*undone, entry.turn or ""), text="", is_summarised=True)
        if entry.turn is None:  # what a client says of the time before the conversation
            return None
        undone.append(entry.turn)
        turn = await turns.get(tx.connection, conversation.account, entry.turn)
        if turn is None or turn.trigger != "job":
            text = "" if turn is None else turn.input
            return _Exchange(turns=tuple(undone), text=text, is_summarised=False)
    return None


def _effective(rows: list[tuple[str | None, bytes]]) -> list[StoredEntry]:
    """Return the entries that the agent's next turn gets; raises UnreadableHistory."""
    found: list[StoredEntry] = []
    for turn, body in rows:
        entry = decode_entry(body)
        if entry is None:
            continue
        if entry.undoes:
            del found[max(len(found) - entry.undoes, 0) :]
            continue
        if entry.replaces:
            found.clear()
        found.append(StoredEntry(turn=turn, replaces=entry.replaces))
    return found


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
        await delete_entries(tx, conversation, len(found))
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
