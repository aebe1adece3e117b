"""What platforms report of rooms: new ids, rooms that are open again, permissions that changed.

A room gets a new id when a group becomes a supergroup, or a repository is renamed. If only a thread of it
does, such as an issue that is transferred, its conversations and what waits for it are moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from channels.message import (
    Address,
    ButtonPress,
    PermissionsChanged,
    RoomChange,
    RoomMigrated,
    RoomReopened,
    RoomsRenamed,
)
from delivery.chat import draft_store
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries import routes, store
from delivery.deliveries.ordering import reopen
from delivery.deliveries.transactions import Transaction, Transactions
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.chat_conversations import end_waits, list_waiting, reopen_chat
from gateway.memory.visibility import chat_room_key
from gateway.store.accounts import records, revisions
from gateway.store.accounts.records import Record
from gateway.store.conversations import (
    channel_state,
    conversations,
    memories,
    messages,
    pairings,
    room_messages,
)
from gateway.store.conversations.memories import MemoryScope

log = structlog.get_logger(__name__)


class RoomChanges:
    """Applies the changes that platforms report of rooms."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def apply(self, context: ChannelContext, change: RoomChange) -> None:
        """Apply one change, once."""
        match change:
            case RoomMigrated() | RoomsRenamed():
                await self._move(context, change)
            case RoomReopened():
                async with self._transactions.begin("reception") as tx:
                    await reopen_chat(tx, context.record.account, change.address)
            case PermissionsChanged():
                await self._end_waits(context, change)

    async def follow(self, context: ChannelContext, press: ButtonPress) -> ButtonPress:
        """Return a press under a message that stayed at the old id of a room as one at the new id."""
        async with self._transactions.database.read() as connection:
            room = await get_new_room(connection, context.record.id, press.address.room)
        return press if room is None else replace(press, address=replace(press.address, room=room))

    async def _end_waits(self, context: ChannelContext, change: PermissionsChanged) -> None:
        """Try again what waits for a permission; a change that concerns nothing of it writes nothing."""
        async with self._transactions.database.read() as connection:
            found = await list_waiting(connection, change)
        if found:
            async with self._transactions.begin("reception") as tx:
                await end_waits(tx, context.record.account, found)

    async def _move(self, context: ChannelContext, change: RoomMigrated | RoomsRenamed) -> None:
        """Move what belongs to rooms to their new ids; `dovecote.toml` still names the old ones."""
        account, channel = context.record.account, context.record.id
        outdated: list[RoomMigrated] = []
        async with self._transactions.begin("reception") as tx:
            is_new = await conversations.record_event(
                tx.connection,
                account=account,
                source=channel,
                event_key=change.key,
                message=change.key[:40],
                turn=None,
            )
            moves = await _migrations(tx, account, change) if is_new else []
            for one in moves:
                if not await move_settings(tx.connection, one):
                    outdated.append(one)
                await move_room(tx.connection, account, one)
        for one in moves:
            _report(context.record.name, one, is_outdated=one in outdated)


async def _migrations(
    tx: Transaction, account: str, change: RoomMigrated | RoomsRenamed
) -> list[RoomMigrated]:
    if isinstance(change, RoomMigrated):
        return [change]
    return await list_rooms(tx.connection, account, change)


def _report(channel: str, migration: RoomMigrated, *, is_outdated: bool) -> None:
    old, new = migration.old.room, migration.new.room
    log.info("ingress.room_migrated", channel=channel, old=old, new=new)
    if is_outdated:
        log.warning(
            "ingress.room_settings_outdated",
            channel=channel,
            note=f"rooms of this channel in dovecote.toml names {old}, and the room is {new} now",
        )


_MOVED = "gateway:moved:"
"""Prefix of the names of values in a channel's state: the new ids of rooms whose messages did not move."""


async def move_settings(connection: Connection, migration: RoomMigrated) -> bool:
    """Move the settings of a room in its channel's record to the new id.

    Returns False if they stay under the old id, because the configuration file declares the channel.
    """
    old, new = migration.old.room, migration.new.room
    channel = await records.get_by_id(connection, migration.old.channel)
    if channel is None or old not in _rooms(channel) or migration.old.thread is not None:
        return True
    await revisions.lock(connection, channel.account)
    channel = await records.get_by_id(connection, channel.id)
    if channel is None or channel.managed or new in _rooms(channel):
        return channel is None or new in _rooms(channel)
    rooms = {new if room == old else room: given for room, given in _rooms(channel).items()}
    settings = {**channel.config["settings"], "rooms": rooms}
    await records.update_record(connection, replace(channel, config={**channel.config, "settings": settings}))
    return True


def _rooms(channel: Record) -> Mapping[str, Any]:
    return dict(channel.config.get("settings", {}).get("rooms") or {})


async def list_rooms(connection: Connection, account: str, change: RoomsRenamed) -> list[RoomMigrated]:
    """Return the moves of the rooms that have conversations or settings, for a change of their names."""
    channel = await records.get_by_id(connection, change.channel)
    rooms = set() if channel is None else set(_rooms(channel))
    rooms |= await conversations.list_rooms(connection, account, channel=change.channel, prefix=change.old)
    return [
        RoomMigrated(
            key=change.key,
            old=Address(channel=change.channel, room=room),
            new=Address(channel=change.channel, room=change.new + room.removeprefix(change.old)),
        )
        for room in sorted(rooms)
        if room.startswith(change.old)
    ]


async def get_new_room(connection: Connection, channel: str, room: str) -> str | None:
    """Return the id to which a room was moved without its messages; None if it was not."""
    return await channel_state.get(connection, channel, _MOVED + room)


async def move_room(connection: Connection, account: str, migration: RoomMigrated) -> None:
    """Move what belongs to a room to its new id: conversations, routes, open deliveries, notes, pairings.

    What is about the whole room stays where it is if only a thread of it moves.
    """
    old, new = migration.old, migration.new
    for one in await conversations.list_in_room(connection, account, channel=old.channel, room=old.room):
        address = old.moved(Address.decode(one.address), new)
        if address is None:
            continue
        # what was said under the new id before this update has a conversation, which stays the open one
        is_taken = await conversations.get_by_address(connection, account, address.key) is not None
        key = None if is_taken or one.address_key is None else address.key
        await conversations.change_address(connection, one.id, address=address.encode(), address_key=key)
        if not migration.keeps_messages:
            await messages.forget_platform_ids(connection, one.id)
    moved = await routes.move_room(connection, old=old, new=new)
    await reopen(connection, account, old.destination)  # the platform may have refused the old id already
    await store.move_room(
        connection, old=old, new=new, keeps_messages=migration.keeps_messages, conversations=moved
    )
    if migration.keeps_messages or old.thread is not None:  # the messages of a thread move with it
        keeps_messages = migration.keeps_messages
        await draft_store.move_room(
            connection, old=old, new=new, keeps_messages=keeps_messages, now=utc_now()
        )
    if old.thread is None:
        await _move_what_is_about_it(connection, account, migration)


async def _move_what_is_about_it(connection: Connection, account: str, migration: RoomMigrated) -> None:
    old, new = migration.old, migration.new
    await room_messages.move(
        connection, old=old.destination, new=new.destination, keeps_messages=migration.keeps_messages
    )
    await memories.move_subject(
        connection, account, MemoryScope.ROOM, old=chat_room_key(old), new=chat_room_key(new)
    )
    await pairings.move_room(connection, old=old, room=new.room)
    if not migration.keeps_messages:
        await channel_state.save(connection, old.channel, {_MOVED + old.room: new.room})
