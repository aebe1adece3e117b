"""The command `/undo`: take the last exchange out of what the agent knows of a conversation.

Nothing is erased: a row of the history takes back the rows before it, the messages stay, and the event
`turn.undone` says which turns the agent no longer knows of.
"""

from __future__ import annotations

from dataclasses import dataclass

from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType
from gateway.agents.history import HistoryEntry, UnreadableHistory, decode_entry, encode_entry
from gateway.conversations.notices import quoted
from gateway.store.conversations import conversations, histories
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import branches, turns

BUSY = "Something is running or waits for its turn; `/stop` ends it."
NOTHING = "There is nothing to take back."
SUMMARISED = (
    "The last exchange is part of a summary of the conversation and cannot be taken back; `/new` starts anew."
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
    await forget_entries(tx, conversation, len(exchange.turns))
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
        f"Taken back: {quoted(exchange.text)}. The agent no longer knows of it; files and other effects of "
        "commands stay as they are."
    )


async def forget_entries(tx: Transaction, conversation: Conversation, count: int) -> None:
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
        undone.append(entry.turn or "")
        if entry.replaces:
            return _Exchange(turns=tuple(undone), text="", is_summarised=True)
        turn = await turns.get(tx.connection, conversation.account, entry.turn or "")
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
