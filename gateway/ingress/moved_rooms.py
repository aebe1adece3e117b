"""Rooms that get a new id at their platform: a group that becomes a supergroup, a renamed repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from channels.message import Address, RoomMigrated
from delivery.database.engine import Connection
from delivery.deliveries import routes, store
from delivery.deliveries.ordering import reopen
from gateway.memory.visibility import chat_room_key
from gateway.store.accounts import records, revisions
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations, memories, pairings, room_messages
from gateway.store.conversations.memories import MemoryScope


async def move_settings(connection: Connection, migration: RoomMigrated) -> bool:
    """Move the settings of a room in its channel's record to the new id.

    Returns False if they stay under the old id, because the configuration file declares the channel.
    """
    old, new = migration.old.room, migration.new.room
    channel = await records.get_by_id(connection, migration.old.channel)
    if channel is None or old not in _rooms(channel):
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


async def move_room(connection: Connection, account: str, migration: RoomMigrated) -> None:
    """Move what belongs to a room to its new id: conversations, routes, open deliveries, notes, pairings."""
    old, new = migration.old, migration.new
    for one in await conversations.list_in_room(connection, account, channel=old.channel, room=old.room):
        address = replace(Address.decode(one.address), room=new.room)
        # what was said under the new id before this update has a conversation, which stays the open one
        is_taken = await conversations.get_by_address(connection, account, address.key) is not None
        key = None if is_taken or one.address_key is None else address.key
        await conversations.change_address(connection, one.id, address=address.encode(), address_key=key)
    await routes.move_room(connection, old=old, room=new.room)
    await reopen(connection, account, old.destination)  # the platform may have refused the old id already
    await store.move_room(connection, old=old, room=new.room)
    await room_messages.move(connection, old=old.destination, new=new.destination)
    await memories.move_subject(
        connection, account, MemoryScope.ROOM, old=chat_room_key(old), new=chat_room_key(new)
    )
    await pairings.move_room(connection, old=old, room=new.room)
