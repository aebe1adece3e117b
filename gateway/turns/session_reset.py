"""A new conversation in a chat thread: on request (`/new`), or after a time without messages."""

from __future__ import annotations

from datetime import timedelta

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from gateway.conversations.notices import post_notice
from gateway.store.conversations import conversations, listing, room_messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import turns

RESET_NOTICE = "Nothing was said here for a while, so a new conversation begins. The earlier one is kept."


async def begin_anew(tx: Transaction, conversation: Conversation) -> None:
    """Have the next message of the chat thread begin a new conversation."""
    await conversations.detach_address(tx.connection, conversation.id)
    if conversation.address is not None:
        address = Address.decode(conversation.address)
        await room_messages.delete_thread(tx.connection, address.destination, address.thread or "")


async def reset_if_idle(tx: Transaction, account: str, address: Address, *, after: int) -> None:
    """Begin a new conversation if nothing has happened in the thread's for `after` seconds (0: never).

    Not while a turn is open, such as one that waits for an approval, or while a person handles it.
    """
    if not after:
        return
    found = await conversations.get_by_address(tx.connection, account, address.key)
    view = None if found is None else await listing.get(tx.connection, account, found.id)
    if found is None or view is None or view.active_at > utc_now() - timedelta(seconds=after):
        return
    if found.handover_by is None and not await turns.list_open(tx.connection, found.id):
        await post_notice(tx, found.id, RESET_NOTICE, urgent=True)
        await begin_anew(tx, found)
