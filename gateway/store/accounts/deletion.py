"""SQL that deletes accounts and conversations with everything that refers to them."""

from __future__ import annotations

from sqlalchemy import delete, select, true

from channels.message import Address
from delivery.database.engine import Connection
from delivery.webhooks import endpoints
from gateway.store.accounts import audit_log
from gateway.store.channel_tables import channel_notes as notes
from gateway.store.channel_tables import channel_secrets, pairings
from gateway.store.job_state import JobState
from gateway.store.memory_tables import memories
from gateway.store.room_tables import room_messages
from gateway.store.sandbox_tables import sandboxes
from gateway.store.schedule_tables import schedules
from gateway.store.tables import (
    IS_OPEN,
    accounts,
    conversations,
    inbox,
    jobs,
    records,
    replies,
    turns,
)

LOCKED_BEFORE = (
    (conversations, true()),
    (turns, IS_OPEN),
    (jobs, jobs.c.state == str(JobState.RUNNING)),
    (sandboxes, true()),
    (schedules, true()),
)
"""The rows that a transaction locks before it writes rows of their account."""


async def lock_account(connection: Connection, account: str) -> None:
    """Wait for the transactions that write rows of an account, and let no other begin until this one ends.

    A deletion would not see what they commit later. They hold a lock of the account if they write a row that
    refers to it, or lock it against deletion. Before, most have locked a row of one of these tables: a
    deletion that had the account already would wait for them, and they for it.
    """
    for table, which in LOCKED_BEFORE:
        own = select(table.c.account).where(table.c.account == account, which).with_for_update()
        await connection.execute(own)
    await connection.execute(select(accounts.c.id).where(accounts.c.id == account).with_for_update())


async def delete_account(connection: Connection, account: str) -> bool:
    """Delete an account, its records, conversations, turns, jobs and deliveries; False when there is none."""
    await lock_account(connection, account)
    channels = select(records.c.id).where(records.c.account == account, records.c.kind == "channel")
    for table in (pairings, notes, channel_secrets):
        await connection.execute(delete(table).where(table.c.channel.in_(channels)))
    for table in (inbox, replies):
        await connection.execute(delete(table).where(table.c.account == account))
    await audit_log.schedule_account_purge(connection, account)
    await endpoints.delete_account(connection, account)
    done = await connection.execute(delete(accounts).where(accounts.c.id == account))
    return done.rowcount > 0


async def delete_conversation(connection: Connection, account: str, conversation: str) -> bool:
    """Delete a conversation with its turns, jobs, deliveries and routes; False when there is none."""
    own = (conversations.c.account == account) & (conversations.c.id == conversation)
    await connection.execute(select(conversations.c.id).where(own).with_for_update())  # new turns wait
    await _delete_room_messages(connection, account, conversation)
    await connection.execute(
        delete(memories).where(
            memories.c.account == account, memories.c.scope == "room", memories.c.subject == conversation
        )
    )
    begun = await connection.execute(select(turns.c.id).where(turns.c.conversation == conversation))
    await endpoints.delete_conversation(connection, account, conversation, turns=[row.id for row in begun])
    done = await connection.execute(delete(conversations).where(own))
    return done.rowcount > 0


async def _delete_room_messages(connection: Connection, account: str, conversation: str) -> None:
    """Delete what is kept of the room that a conversation is in."""
    found = await connection.execute(
        select(conversations.c.address).where(
            conversations.c.account == account, conversations.c.id == conversation
        )
    )
    if (address := found.scalar_one_or_none()) is not None:
        room = Address.decode(address).destination
        await connection.execute(delete(room_messages).where(room_messages.c.room == room))
